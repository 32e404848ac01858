"""Which names does a model use, so that what is made up gets another?"""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Names:
    """Every name of a model's graphs so far, whether its value is there yet or not, and those of dims."""

    known: set[str] = attrs.Factory(set)
    #: How many names were made from one that something had.
    copies: dict[str, int] = attrs.Factory(dict)

    def fresh(self, name: str) -> str:
        """Return *name*, or if something has that name already, one like it."""
        first, copies = name, self.copies.get(name, 0)
        while name in self.known:
            copies += 1
            name = f"{first}'{copies}"
        self.copies[first] = copies
        self.known.add(name)
        return name
