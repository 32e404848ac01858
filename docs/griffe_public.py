"""Tells the site's reader of the source that public names are there at run time, though only type checkers see them."""

from __future__ import annotations

from typing import Any

import griffe


class PublicNames(griffe.Extension):
    """`asyncrt.public` imports its names when they are asked for; its import statements are for type checkers."""

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Let ``from asyncrt.public import *`` mean all of them."""
        if mod.path == "asyncrt.public":
            for member in mod.members.values():
                member.runtime = True
