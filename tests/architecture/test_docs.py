"""What the pages say is so: names exist, links lead somewhere, lists are complete, and examples run."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import attrs
import onnx
import pytest
from typer.testing import CliRunner

import asyncrt
from asyncrt.cli.commands import app
from asyncrt.devices.base import Device
from asyncrt.devices.find import open_device
from asyncrt.devices.host import HostDevice
from asyncrt.mechanisms import BUILDS_ON, MECHANISMS, Mechanism

from ..paths import ELSEWHERE

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests" / "README.md"])
FOLDERS = {p.name for p in ROOT.iterdir() if p.is_dir()}
ERRORS = [n for n in asyncrt.__all__ if inspect.isclass(e := getattr(asyncrt, n)) and issubclass(e, Exception)]

_FENCE = re.compile(r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@attrs.frozen
class Block:
    """A fenced block of a page; `mark` is the comment before it."""

    page: Path
    number: int
    mark: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = enumerate(_FENCE.finditer(page.read_text(encoding="utf-8")))
    return [Block(page, i, m["mark"] or "", m["language"], m["text"]) for i, m in found]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def load_script(name: str) -> ModuleType:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Names.


def problem_of(span: str) -> str:
    """What is wrong with a code span that names a path, `path.py:function` or `Class.method`; "" if nothing."""
    if match := re.fullmatch(r"([A-Z]\w+)\.(\w+)(?:\(.*\))?", span):
        known = members()
        return f"{span}: {match[1]} has no {match[2]}" if match[2] not in known.get(match[1], {match[2]}) else ""
    match = re.fullmatch(r"(\.?\w[\w-]*(?:/[\w.-]+)+?/?)(?::([\w.]+))?", span)
    if match is None or (match[1].split("/")[0] not in FOLDERS and not match[1].endswith(".py")):
        return ""
    path = ROOT / match[1]
    if not path.exists():
        return f"{span}: there is no {match[1]}"
    if match[2] is not None and match[2] not in defined(path):
        return f"{span}: {match[1]} defines no {match[2]}"
    return ""


@functools.cache
def defined(path: Path) -> frozenset[str]:
    """The classes, functions, attributes and constants that a file defines; those of a class with its name."""
    names: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            names.update(prefix + t.id for t in targets if isinstance(t, ast.Name))

    collect(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(names)


@functools.cache
def members() -> dict[str, set[str]]:
    """What each class of the package defines, by its name; those of one name together."""
    found: dict[str, set[str]] = {}
    for folder in ("asyncrt", "memory", "scheduler", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in defined(path):
                if "." in name:
                    owner, _, member = name.rpartition(".")
                    found.setdefault(owner, set()).add(member)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_and_function_that_a_page_names_exists(page: Path) -> None:
    """`asyncrt/runtime/plan/chunk_plan.py:ChunkPlan` in prose is a promise that it is there."""
    problems = [problem_of(span) for span in re.findall(r"`([^`\n]+)`", prose(page))]

    assert [p for p in problems if p] == []


def test_a_name_that_is_gone_is_seen() -> None:
    """The test above can fail: it sees files, functions and methods that are not there, and knows those that are."""
    there = ("memory/view.py", "memory/view.py:View.is_dense", "View.is_dense", "scheduler/policies", "kernels/<a>.py")
    gone = ("memory/no.py", "memory/view.py:View.no", "View.no", "memory/view.py:No", "scheduler/no", "no/such.py")

    assert [problem_of(span) for span in there] == [""] * len(there)
    assert all(problem_of(span) for span in gone)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Relative links name files of the repository, and anchors name headings."""
    gone = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            gone.append(target)

    assert gone == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


def test_every_page_can_be_reached() -> None:
    """From the README, by links alone."""
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        targets = re.findall(r"\]\(([^)#\s]+)", prose(page))
        waiting += [(page.parent / t).resolve() for t in targets if not re.match(r"[a-z]+:", t)]

    assert [name_of(p) for p in PAGES if p not in reached] == []


# Lists.


def first_cells(page: Path) -> list[str]:
    """The first cell of every row of the page's tables, if it is one code span."""
    return re.findall(r"^\| `(\w+)` \|", page.read_text(encoding="utf-8"), re.M)


def test_every_option_and_mechanism_is_documented() -> None:
    """Each is one row of docs/options.md: options with their defaults, mechanisms with what they are."""
    page = ROOT / "docs" / "options.md"
    fields = {f.name: default(f.default) for f in attrs.fields(asyncrt.RuntimeOptions)}
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page.read_text(encoding="utf-8"), re.M)

    assert sorted(rows) == sorted([*fields.items(), *MECHANISMS.items()])


def test_every_mechanism_is_in_the_table() -> None:
    """What may be written is what is said to be there; what one builds on is a mechanism as well."""
    assert list(MECHANISMS) == list(get_args(Mechanism))
    assert {*BUILDS_ON, *BUILDS_ON.values(), *ELSEWHERE} <= {*MECHANISMS}


def default(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 30} GiB" if value >= 1 << 30 else f"{value >> 20} MiB"
    if value == frozenset():
        return "`set()`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def test_every_error_is_documented() -> None:
    """In the tree, in its place, and in one row of a table of docs/errors.md; the base has a paragraph."""
    page = ROOT / "docs" / "errors.md"
    (tree,) = (b.text for b in blocks(page) if b.text.startswith("AsyncrtError"))
    parents = {n: [b.__name__ for b in getattr(asyncrt, n).__bases__] for n in ERRORS}
    drawn: dict[str, list[str]] = {}
    above: list[str] = ["Exception"]
    for line in tree.splitlines():
        marks, name, builtins = re.fullmatch(r"([│├└─ ]*)(\w+)(?: \((.+)\))?", line).groups()  # type: ignore[union-attr]
        depth = len(marks) // 4 + 1
        drawn[name] = [above[depth - 1], *(builtins.split(", ") if builtins else [])]
        above[depth:] = [name]

    assert parents == drawn
    assert sorted(first_cells(page)) == sorted(n for n in ERRORS if n != "AsyncrtError")


def test_the_page_of_operators_is_what_the_registry_says() -> None:
    """After a change: python docs/make_operators.py --write."""
    made = load_script("make_operators")
    page, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/operators.md", "README.md"))
    if f"with onnx {made.ONNX};" not in page:
        pytest.skip("another version of onnx has other operators")

    assert made.page() == page
    assert made.with_count(readme) == readme
    assert re.search(r"\[\d+ operators\]\(docs/operators\.md\)", readme)


CHOOSE = """<ir_version: 8, opset_import: ["" : 18]>
choose (bool c, float[n] x) => (float[n] y) {
    y = If (c) <then_branch = a () => (float[n] p) { p = Relu (x) }, else_branch = b () => (float[n] q) { q = Neg (x) }>
}"""


@pytest.mark.asyncio
async def test_the_readme_says_whether_there_is_control_flow() -> None:
    """The limit is stated as long as it is one, and no longer."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    refused = False
    async with asyncrt.Runtime("host") as rt:
        try:
            await rt.load(onnx.parser.parse_model(CHOOSE))
        except asyncrt.UnsupportedOperatorError:
            refused = True

    assert refused == ("No control flow" in readme)
    assert refused == ("- control flow: " in (ROOT / "docs" / "operators.md").read_text(encoding="utf-8"))


# Examples.

TUTORIALS = [name_of(p) for p in PAGES if p.parent.name == "tutorials"]
WITH_EXAMPLES = ["README.md", "docs/index.md", *TUTORIALS]
EXAMPLES = [b for p in WITH_EXAMPLES for b in blocks(ROOT / p) if b.language == "python"]


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda b: f"{name_of(b.page)}-{b.number}")
def test_every_example_compiles(block: Block) -> None:
    """And is either run by a test or has no mark."""
    compile(block.text, f"{name_of(block.page)}, block {block.number}", "exec")

    assert block.mark in ("", "runs")


@pytest.mark.parametrize("page", [*ROOT.glob("docs/add-*.md"), ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_code_shown_is_code_that_is_there(page: Path) -> None:
    """Each piece that a recipe quotes, between two blank lines, stands in a file of the package."""
    package = [p for f in ("asyncrt", "memory", "scheduler", "kernels") for p in (ROOT / f).rglob("*.py")]
    sources = ["\n".join(line.strip() for line in p.read_text(encoding="utf-8").splitlines()) for p in package]
    quoted = [piece for b in blocks(page) if b.language == "python" for piece in b.text.split("\n\n\n")]

    for text in quoted:
        lines = "\n".join(line.strip() for line in text.strip().splitlines())
        assert any(lines in source for source in sources), text


@pytest.fixture
def host_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples open the best device; here that is the host, which every machine has."""

    def opened(spec: str | None, kept: object) -> Device:
        return HostDevice() if spec is None else open_device(spec)

    monkeypatch.setattr("asyncrt.devices.find.open_device", opened)


def marked(page: str) -> list[Block]:
    """The blocks of a page that are marked to run."""
    return [b for b in blocks(ROOT / page) if b.mark == "runs"]


def run_page(page: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Run the blocks marked so, one after the other in one namespace, as a reader would.

    Returns:
        What each printed, and for each block of output in the page what it shows and what was printed.
    """
    names: dict[str, object] = {"__name__": "__main__"}
    printed, shown = [], []
    for block in blocks(ROOT / page):
        if block.mark == "runs":
            exec(compile(block.text, f"{page}, block {block.number}", "exec"), names)
            printed.append(capsys.readouterr().out)
        if block.mark == "printed":
            shown.append((block.text, printed[-1]))
    return printed, shown


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
@pytest.mark.usefixtures("host_by_default")
def test_the_examples_marked_so_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one folder, as a reader would."""
    monkeypatch.chdir(tmp_path)
    printed, _ = run_page(page, capsys)

    assert "skipped" in "".join(printed)


@pytest.mark.parametrize("page", [n for n in map(name_of, PAGES) if n not in WITH_EXAMPLES and marked(n)])
@pytest.mark.usefixtures("host_by_default")
def test_the_examples_of_other_pages_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What they promise they assert themselves."""
    printed, shown = run_page(page, capsys)

    assert len(printed) >= 1
    assert [shows for shows, _ in shown] == [was for _, was in shown]


@pytest.mark.parametrize("page", TUTORIALS)
@pytest.mark.usefixtures("host_by_default")
def test_a_tutorial_prints_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of its blocks of Python runs, and prints the output that the page shows behind it."""
    monkeypatch.chdir(tmp_path)
    _, shown = run_page(page, capsys)

    assert [b.mark for b in blocks(ROOT / page) if b.language == "python" and b.mark != "runs"] == []
    assert len(shown) >= 2
    assert [shows for shows, _ in shown] == [was for _, was in shown]


def test_the_commands_of_the_readme_print_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an OpenCL device; blanks at the ends of lines apart."""
    try:
        open_device(None).close()
    except asyncrt.NoDeviceError:
        pytest.skip("no OpenCL device")
    monkeypatch.chdir(tmp_path)
    page = ROOT / "README.md"
    first, *_ = (b for b in blocks(page) if b.mark == "runs")
    exec(compile(first.text, "README.md", "exec"), {"__name__": "__main__"})
    shown = [b for b in blocks(page) if b.mark.startswith("prints: ")]
    for block in shown:
        command = block.mark.removeprefix("prints: ").split()
        assert command[0] == "asyncrt"
        done = CliRunner().invoke(app, command[1:], env={"COLUMNS": "160"})

        assert done.exit_code == 0, done.output
        assert block.text.splitlines() == [line.rstrip() for line in done.stdout.splitlines()]
    assert len(shown) >= 1


def test_the_commands_of_the_readme_exist() -> None:
    """Every `asyncrt ...` and `make ...` in a shell block is a command, with options that it has."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [line for p in PAGES for b in blocks(p) if b.language == "sh" for line in b.text.splitlines()]
    commands = [line.partition("  #")[0].split() for line in lines]
    ours = [c for c in commands if c and c[0] == "asyncrt"]
    targets = [c[c.index("make") + 1] for c in commands if "make" in c]

    assert {c[1] for c in ours} >= {"devices", "run", "explain", "bench"}
    for command in ours:
        help_text = CliRunner().invoke(app, [command[1], "--help"], env={"COLUMNS": "200"}).stdout
        assert [o for o in command[2:] if o.startswith("-") and o not in help_text] == [], command
    assert [t for t in targets if not re.search(rf"^{t}:", makefile, re.M)] == []


def test_pages_have_one_sentence_on_a_line() -> None:
    """A change to a sentence is then a change to a line."""
    ends = re.compile(r"[a-z`)][.!?] +[A-Z`]")
    long = [
        f"{name_of(p)}: {line}"
        for p in PAGES
        if p.name != "benchmarks.md"  # written by the benchmarks
        for line in prose(p).splitlines()
        if not line.startswith("|") and ends.search(line.replace("e.g. ", "").replace("`...`", ""))
    ]

    assert long == []


