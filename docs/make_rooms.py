"""Draw the rooms: docs/rooms.svg shows the layers that the import contracts of pyproject.toml allow.

    python docs/make_rooms.py           # print it
    python docs/make_rooms.py --write   # after a contract has changed
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "rooms.svg"

Rows = list[list[str]]

WIDTH, GAP, HEIGHT, MARGIN, CHARACTER = 560, 8, 32, 24, 7.9
COLOURS = {"asyncrt": "#e3e8f8", "runtime": "#dff1e4", "kernels": "#fbe9d5", "graph": "#f3e1f0"}


def houses() -> dict[str, Rows]:
    """The layers of each contract, from the top down, by the name of the package that it is about."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = [c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    return {
        c["containers"][0].rpartition(".")[2]: [
            [module.strip() for module in layer.replace(":", "|").split("|")] for layer in c["layers"]
        ]
        for c in contracts
    }


def boxes(row: list[str], x: float, y: float, colour: str, opened: set[str]) -> list[str]:
    """One layer: its modules side by side, as wide as their names want."""
    wanted = [len(name) * CHARACTER + 16 for name in row]
    room = WIDTH - GAP * (len(row) - 1)
    parts = []
    for name, width in zip(row, wanted, strict=True):
        wide = room * width / sum(wanted)
        frame = 2.5 if name in opened else 1
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{HEIGHT}" rx="5"'
            f' fill="{colour}" stroke="#5b6478" stroke-width="{frame}"/>'
            f'<text x="{x + wide / 2:.1f}" y="{y + HEIGHT / 2 + 5:.1f}" text-anchor="middle">{escape(name)}</text>'
        )
        x += wide + GAP
    return parts


def house(name: str, rows: Rows, x: float, y: float, opened: set[str]) -> list[str]:
    parts = [f'<text x="{x}" y="{y + 16}" class="title">{escape(name)}</text>']
    top = y + 28
    for number, row in enumerate(rows):
        parts += boxes(row, x, top + number * (HEIGHT + GAP), COLOURS.get(name, "#eeeeee"), opened)
    return parts


def tall(rows: Rows) -> int:
    return 28 + len(rows) * (HEIGHT + GAP) + 20


def picture() -> str:
    """The picture: the whole package and the packages in it, in two columns that are about equally tall."""
    all_of_them = houses()
    opened = set(all_of_them)
    heights, parts = [MARGIN + 30, MARGIN + 30], []
    for name, rows in all_of_them.items():
        column = 0 if heights[0] <= heights[1] else 1
        inside = opened if name == "asyncrt" else set[str]()
        parts += house(name, rows, MARGIN + column * (WIDTH + 2 * MARGIN), heights[column], inside)
        heights[column] += tall(rows)
    width, height = 2 * (WIDTH + 2 * MARGIN), max(heights) + MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        "<style>text { font: 14px sans-serif; } .title { font: bold 18px sans-serif; }</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 10}">A module imports only from the rows below its own.'
        " A thick frame marks a package that is drawn by itself.</text>",
        *parts,
        "</svg>",
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    if "--write" in sys.argv:
        PICTURE.write_text(picture(), encoding="utf-8")
    else:
        print(picture(), end="")
