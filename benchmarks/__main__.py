"""Which benchmark? All of them: see `benchmarks.all`."""

from __future__ import annotations

import typer

from .all import main

if __name__ == "__main__":
    typer.run(main)
