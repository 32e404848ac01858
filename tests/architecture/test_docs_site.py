"""The site has what it promises: the whole reference, the picture of the rooms, and the plain path of a request.

`make docs` checks the rest: the menu, links, anchors and docstrings, with warnings as errors.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import asyncrt

from .test_docs import ROOT, load_script

REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))


def written_for(pages: list[Path]) -> list[str]:
    """The names whose docstrings the pages show."""
    return [n for p in pages for n in re.findall(r"^::: asyncrt\.(\w+)$", p.read_text(encoding="utf-8"), re.M)]


def test_the_reference_has_each_public_name_once() -> None:
    """`asyncrt.__all__`, and the three modules that users import by themselves."""
    expected = {*asyncrt.__all__, "compat", "debug", "onnx_backend"} - {"__version__"}

    assert Counter(expected) == Counter(written_for(REFERENCE))


def test_the_picture_of_the_rooms_is_what_the_contracts_say() -> None:
    """After a change: python docs/make_rooms.py --write."""
    made = load_script("make_rooms")

    assert made.picture() == (ROOT / "docs" / "rooms.svg").read_text(encoding="utf-8")


def test_each_room_is_described() -> None:
    """In docs/rooms.md, in the table of its package."""
    page = (ROOT / "docs" / "rooms.md").read_text(encoding="utf-8")
    found = re.findall(r"^## (.+)\n((?:(?!##).*\n)+)", page, re.M)
    sections = {title.rpartition(" ")[2]: text for title, text in found}
    rooms = load_script("make_rooms").houses()

    for package, rows in rooms.items():
        text = sections["package" if package == "asyncrt" else package]
        cells = re.findall(r"^\| (`.+?`) \|", text, re.M)
        named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
        assert sorted(name for row in rows for name in row) == sorted(named), package


WALK = ROOT / "docs" / "walk-of-a-request.md"


def plain_path(text: str) -> list[str]:
    """The files that the plain path of a request names, in order."""
    (section,) = re.findall(r"^## The plain path\n(.*?)^## ", text, re.M | re.S)
    return re.findall(r"`([\w/]+\.py)(?::[\w.]+)?`", section)


def test_the_plain_path_names_each_file_once() -> None:
    """In the order in which a request comes to them; what is named is there."""
    files = plain_path(WALK.read_text(encoding="utf-8"))

    assert len(files) >= 10
    assert [f for f, times in Counter(files).items() if times > 1] == []
    assert [f for f in files if not (ROOT / f).is_file()] == []


def test_a_file_that_comes_twice_in_the_plain_path_is_seen() -> None:
    """The test above can fail, and does not look beyond the plain path."""
    text = "## The plain path\n\n1. `a/b.py:f`.\n2. `c/d.py`.\n3. `a/b.py`.\n\n## Faster\n\n1. `c/d.py`.\n"

    assert plain_path(text) == ["a/b.py", "c/d.py", "a/b.py"]


def test_the_package_says_where_its_documentation_is() -> None:
    """The four addresses that package indexes show; CITATION.cff has the version and the repository."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")

    assert sorted(urls) == ["Changelog", "Documentation", "Issues", "Source"]
    assert f"\nversion: {asyncrt.__version__}\n" in citation
    assert f"\nrepository-code: {urls['Source']}\n" in citation


@pytest.mark.parametrize("page", REFERENCE, ids=lambda p: p.stem)
def test_a_page_of_the_reference_shows_docstrings_or_commands(page: Path) -> None:
    """So that none is left behind empty."""
    text = page.read_text(encoding="utf-8")

    assert re.search(r"^(::: asyncrt|<!-- commands -->)", text, re.M)
