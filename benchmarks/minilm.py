"""How long does a sentence embedding take, beside others with the same cores?

all-MiniLM-L6-v2 in float32, one request at a time, shapes known from earlier requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import command, models
from . import measure as m
from .beside import compare

SIZES = [(1, 8), (1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (8, 32), (8, 128)]
QUICK = [(1, 8), (1, 32), (1, 128), (8, 32)]


async def bench(settings: m.Settings, model: Path, sizes: Sequence[tuple[int, int]] | None = None) -> m.Report:
    """Measure *sizes*: (batch, tokens)."""
    cases: list[tuple[m.Row, m.Inputs]] = [
        ({"batch": batch, "tokens": length}, models.tokens(batch, length))
        for batch, length in sizes or (QUICK if settings.quick else SIZES)
    ]
    return await compare("minilm", settings, model, cases)


if __name__ == "__main__":
    command.run(bench)
