"""How many work-groups may a kernel have whose groups wait for each other?

On a GPU all of them must be on the device at the same time, and those of every other such kernel that is in flight.
Each takes a compute unit for itself. Kernels of one stream follow each other, so at most one for each stream is on the
device; and where a request is alone, nothing else is until it has ended.

On a processor they wait only for groups that have begun, so that any number would do.
"""

from __future__ import annotations


def most_groups(compute_units: int, streams: int, *, alone: bool) -> int:
    """Return how many groups a kernel may have.

    Args:
        compute_units: Of the device.
        streams: Of the runtime, each of which may have such a kernel in flight.
        alone: Whether nothing else is on any stream, and nothing comes before this has ended.
    """
    return compute_units if alone else compute_units // streams


def groups_for(wanted: int, compute_units: int, streams: int, *, alone: bool) -> int:
    """Return how many groups a kernel gets that has use for *wanted*; 0 if it may not be launched."""
    return min(wanted, most_groups(compute_units, streams, alone=alone))


def groups_sharing(wanted: int, compute_units: int, *, alone: bool) -> int:
    """Return how many groups a kernel gets whose groups wait for none that has not begun, of which any number is safe.

    Args:
        wanted: For how many there is something to do.
        alone: Whether it may have all compute units; otherwise it gets one, which leaves the others to the others.
    """
    return max(1, min(wanted, compute_units)) if alone else 1
