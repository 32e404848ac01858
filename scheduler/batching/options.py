"""Every knob of batching, in one frozen record that can be written to a file and read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import attrs

from asyncrt.arguments import check_path
from asyncrt.errors import ArgumentError
from asyncrt.option_fields import counted, integers_or_none, measured, one_of, switch
from asyncrt.writing import write_text

USUAL_ROWS = 32
"""A batch has more rows only where that is known to gain much."""

Mode: TypeAlias = Literal["cost", "exact", "buckets"]


@attrs.frozen(kw_only=True)
class BatchOptions:
    """How requests are put together. What comes back is the same either way; see docs/batching.md.

    Attributes:
        max_batch: Rows of one batch; more than 32 only where a fifth of its time or more does not grow with them. A
            request that has more by itself runs alone.
        max_delay: Seconds that a request may be held back from a busy stream for a fuller batch; from an idle one it
            is never held back.
        mode: "cost" joins the oldest request with those of the nearest shapes, as long as that is cheaper than running
            them apart; "exact" joins equal shapes; "buckets" rounds sizes up and joins what is equal then.
        max_waste: The share of a batch that may be padding ("cost").
        max_work: Elements of a batch's inputs, padding included; None sets no limit.
        buckets: The sizes that "buckets" rounds up to; None is powers of two. A larger size stays as it is.
        max_queue: Requests that may wait.
        max_queue_bytes: Bytes of their inputs.
        max_in_flight: Batches on the device at once; None is the number of its streams, or two where those there have
            32 rows or more.
        ageing_s: A request goes before those of the next higher priority that come so many seconds after it.
        batch_invariant: Results are, bit for bit, those of a request that runs alone; what is not is not batched.
    """

    max_batch: int = counted(128)
    max_delay: float = measured(0.002, 0)
    mode: Mode = one_of("cost", get_args(Mode))  # noqa: RUF009  # a field
    max_waste: float = measured(0.25, 0, 1, below=True)
    max_work: int | None = counted(None)
    buckets: tuple[int, ...] | None = integers_or_none()
    max_queue: int = counted(1024)
    max_queue_bytes: int = counted(256 << 20)
    max_in_flight: int | None = counted(None)
    ageing_s: float = measured(1.0, 1e-6)
    batch_invariant: bool = switch(False)

    @classmethod
    def read(cls, path: str | Path) -> BatchOptions:
        """Return what `write` wrote; fields that are missing have their defaults.

        Raises:
            ArgumentError: It is not JSON, or has a field or a value that is none of these.
        """
        path = check_path("path", path)
        try:
            given: Any = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ArgumentError(f"{path}: batching options are JSON, which this is not: {error}") from error
        known = sorted(a.name for a in attrs.fields(cls))
        unknown = sorted(set(given) - set(known)) if isinstance(given, dict) else [type(given).__name__]
        if unknown:
            raise ArgumentError(f"{path}: batching has no option '{unknown[0]}'; there are {', '.join(known)}")
        return cls(**given)

    def write(self, path: str | Path) -> None:
        """Write them as JSON, whole or not at all."""
        write_text(check_path("path", path), json.dumps(attrs.asdict(self), indent=2) + "\n")
