"""Every function fits on a screen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("asyncrt", "scheduler", "memory", "kernels", "benchmarks", "examples", "tests")
MOST = 60


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Yield the name of each function and its lines, without those of texts of several lines (kernels, docstrings)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            texts: set[int] = set()
            for part in ast.walk(node):
                if isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str)):
                    texts |= set(range(part.lineno + 1, (part.end_lineno or 0) + 1))
            yield node.name, sum(line not in texts for line in range(node.lineno, (node.end_lineno or 0) + 1))


def test_no_function_is_longer_than_a_screen() -> None:
    """At most 60 lines, texts of kernels apart: whoever reads a function sees all of it, and it does one thing.

    Where one is longer, its steps are functions that want a name, or what they hand on is a record that wants one.
    """
    files = {p.resolve() for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")}
    long = [
        f"{path.relative_to(ROOT)}:{name} has {lines} lines"
        for path in sorted(files)
        for name, lines in functions(path.read_text(encoding="utf-8"))
        if lines > MOST
    ]

    assert len(files) > 300
    assert long == []


def test_texts_do_not_count_and_statements_do() -> None:
    """A kernel may be long where the code around it is short; a docstring costs nothing."""
    body = ["    x = 1"] * 3
    kernel = ['    text = f"""', *["  {x} y;"] * 100, '"""']
    source = ["def build():", '    """Say.', "", "    More.", '    """', *body, *kernel, "    return text"]
    inner = ["async def outer():", "    def inner():", *["        pass"] * 5]

    assert list(functions("\n".join(source))) == [("build", 7)]
    assert list(functions("\n".join(inner))) == [("outer", 7), ("inner", 6)]
