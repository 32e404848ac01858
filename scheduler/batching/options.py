"""Every knob of batching, in one frozen record that can be written to a file and read again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import attrs
from attrs import validators as v

from asyncrt.given import check_path
from asyncrt.writing import write_text

Mode: TypeAlias = Literal["cost", "exact", "buckets"]


def _sizes(given: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if given is None else tuple(sorted(given))


@attrs.frozen(kw_only=True)
class BatchOptions:
    """How requests are put together. What comes back is the same either way; see docs/batching.md.

    Attributes:
        max_batch: Rows of one batch. A request that has more by itself runs alone.
        max_delay: Seconds that a request may be held back from a busy stream for a fuller batch; from an idle one it
            is never held back.
        mode: "cost" joins the oldest request with those of the nearest shapes, as long as that is cheaper than running
            them apart; "exact" joins equal shapes; "buckets" rounds sizes up and joins what is equal then.
        max_waste: The share of a batch that may be padding ("cost").
        max_work: Elements of a batch's inputs, padding included; None sets no limit.
        buckets: The sizes that "buckets" rounds up to; None is powers of two. A larger size stays as it is.
        max_queue: Requests that may wait.
        max_queue_bytes: Bytes of their inputs.
        max_in_flight: Batches on the device at once; None is the number of its streams.
        ageing_s: A request goes before those of the next higher priority that come so many seconds after it.
        batch_invariant: Results are, bit for bit, those of a request that runs alone; what is not is not batched.
    """

    max_batch: int = attrs.field(default=32, validator=v.ge(1))
    max_delay: float = attrs.field(default=0.002, validator=[v.ge(0), v.lt(math.inf)])
    mode: Mode = attrs.field(default="cost", validator=v.in_(get_args(Mode)))
    max_waste: float = attrs.field(default=0.25, validator=[v.ge(0), v.lt(1)])
    max_work: int | None = attrs.field(default=None, validator=v.optional(v.ge(1)))
    buckets: tuple[int, ...] | None = attrs.field(default=None, converter=_sizes)
    max_queue: int = attrs.field(default=1024, validator=v.ge(1))
    max_queue_bytes: int = attrs.field(default=256 << 20, validator=v.ge(1))
    max_in_flight: int | None = attrs.field(default=None, validator=v.optional(v.ge(1)))
    ageing_s: float = attrs.field(default=1.0, validator=[v.gt(0), v.lt(math.inf)])
    batch_invariant: bool = False

    @classmethod
    def read(cls, path: str | Path) -> BatchOptions:
        """Return what `write` wrote; fields that are missing have their defaults.

        Raises:
            ValueError: It is not JSON, or has a field or a value that is none of these.
        """
        path = check_path("path", path)
        given: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        known = sorted(a.name for a in attrs.fields(cls))
        unknown = sorted(set(given) - set(known)) if isinstance(given, dict) else [type(given).__name__]
        if unknown:
            raise ValueError(f"{path}: batching has no option '{unknown[0]}'; there are {', '.join(known)}")
        return cls(**given)

    def write(self, path: str | Path) -> None:
        """Write them as JSON, whole or not at all."""
        write_text(check_path("path", path), json.dumps(attrs.asdict(self), indent=2) + "\n")
