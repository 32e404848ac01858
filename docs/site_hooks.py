"""What MkDocs does not do by itself: pages from the top folder, links that leave docs/, and the commands' reference.

The pages are written for a reader of the repository, where links to files of the sources lead to those files.
On the site such a link leads to the repository that pyproject.toml names.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FROM_TOP = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
COMMANDS = "<!-- commands -->"

_FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
_LINK = re.compile(r"\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the top folder."""
    for name, src_uri in FROM_TOP.items():
        files.append(File.generated(config, src_uri, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where they lead on the site, and write the commands where they belong."""
    assert page.file.abs_src_path is not None
    folder = Path(page.file.abs_src_path).resolve().parent
    here = posixpath.dirname(page.file.src_uri)
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, commands())
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):  # what is in code is left alone
        parts += [_linked(markdown[end : fence.start()], folder, here), fence[0]]
        end = fence.end()
    return "".join([*parts, _linked(markdown[end:], folder, here)])


def _linked(text: str, folder: Path, here: str) -> str:
    return _LINK.sub(lambda m: f"]({target_of(m['target'], folder, here)}{m['anchor'] or ''})", text)


def target_of(target: str, folder: Path, here: str) -> str:
    """A link's target on the site; one that leads nowhere stays as it is, so that MkDocs warns of it.

    Args:
        target: As the page has it, relative to `folder`.
        folder: Where the page's file is.
        here: The page's folder on the site.
    """
    if re.match(r"[a-z]+:", target):
        return target
    path = (folder / target).resolve()
    if not path.exists() or not path.is_relative_to(ROOT):
        return target
    if path.is_relative_to(DOCS) and path.suffix != ".py":
        return posixpath.relpath(path.relative_to(DOCS).as_posix(), here or ".")
    name = path.relative_to(ROOT).as_posix()
    if name in FROM_TOP:
        return posixpath.relpath(FROM_TOP[name], here or ".")
    return f"{source()}/{'tree' if path.is_dir() else 'blob'}/main/{name}"


def source() -> str:
    """Where the repository is."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    return str(urls["Source"]).rstrip("/")


def commands() -> str:
    """Each command with its arguments and options, as Typer writes them, below the page's own heading."""
    from asyncrt.cli.commands import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="asyncrt"), name="asyncrt")
    _, *each = re.split(r"^(?=## )", text, flags=re.M)
    return "".join(_examples_as_code(part) for part in each)


def _examples_as_code(text: str) -> str:
    """The examples of a command's help, which are indented by two, as a block of code."""

    def block(match: re.Match[str]) -> str:
        lines = "\n".join(line.strip() for line in match[2].strip().splitlines())
        return f"{match[1]}:\n\n```sh\n{lines}\n```\n"

    return re.sub(r"^(Examples?):\n((?:  .*\n)+)", block, text, flags=re.M)
