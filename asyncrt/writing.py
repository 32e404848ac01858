"""Writing a file whole or not at all: what was there before stays until all of the new one is on the disk."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def written_whole(path: Path, *, text: bool = False) -> Iterator[IO[Any]]:
    """Give a file to write to, which becomes *path* when that has ended well, and leaves nothing behind otherwise.

    What is no file, such as a pipe or a terminal, is written to as it is.

    Args:
        text: Whether it takes text, which is written as UTF-8 with newlines as they are, or bytes.

    Raises:
        OSError: With the path, whatever failed.
    """
    target = Path(os.path.realpath(path))  # a link goes on pointing there
    as_it_is = target.exists() and not target.is_file()
    new = target if as_it_is else target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}")
    how: dict[str, Any] = {"encoding": "utf-8", "newline": "\n"} if text else {}
    try:
        with open(new, ("w" if as_it_is else "x") + ("" if text else "b"), **how) as file:
            yield file
        if not as_it_is:
            if target.exists():
                shutil.copymode(target, new)
            os.replace(new, target)
    except BaseException as error:
        if not as_it_is:
            with contextlib.suppress(OSError):
                new.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(new)):
            error.filename, error.filename2 = str(path), None  # what fails in the middle does not say where
        raise


def write_text(path: Path, text: str) -> None:
    """Write *text* to *path*, whole or not at all."""
    with written_whole(path, text=True) as file:
        file.write(text)
