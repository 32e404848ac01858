"""`python -m asyncrt` is the command `asyncrt`."""

from __future__ import annotations

from asyncrt.cli import main

if __name__ == "__main__":
    main()
