"""Which calls of a simulated device fail? Faults as data, so that what failed once fails again in the same place.

A call is counted under its site, whether it fails or not; after a run the counts say whether a fault was met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs
from attrs import validators as v

from asyncrt.errors import DeviceCommandError

CALLS = ("allocate", "build", "launch", "write", "read", "fill", "wait", "mark")
"""Calls that a device or stream may refuse."""

SITES = (*CALLS, "command", "device")
"""Where a fault may be. "command" is an error status: the n-th command that starts fails while it runs. "device" is
its loss: from the n-th call of any kind on all are refused, and what is enqueued fails."""


@attrs.frozen
class Fault:
    """The n-th call of a site fails.

    Attributes:
        site: One of `SITES`.
        n: Counted from 1.
        error: What it raises, or what the command ends with.
        persistent: Every later one fails, too.
        hangs: Of a lost device: what is enqueued never ends, instead of failing.
    """

    site: str = attrs.field(validator=v.in_(SITES))
    n: int = attrs.field(default=1, validator=v.ge(1))
    error: type[Exception] = DeviceCommandError
    persistent: bool = False
    hangs: bool = False


class Faults:
    """Counts calls, and raises where a fault says so."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self._faults = tuple(faults)
        self.calls: Counter[str] = Counter()
        #: What the device was lost with.
        self.lost: Fault | None = None

    def __repr__(self) -> str:
        return f"<Faults {list(self._faults)}, calls {dict(self.calls)}>"

    def lose(self, fault: Fault) -> None:
        """The device is lost from here on."""
        self.lost = fault

    def call(self, site: str) -> None:
        """Count a call; raises if it is to fail."""
        self.calls["device"] += 1
        for fault in self._faults:
            if fault.site == "device" and self.calls["device"] >= fault.n:
                self.lost = fault
        if self.lost is not None:
            raise self.lost.error(f"injected: the device was lost, {site} refused")
        error = self.command(site)
        if error is not None:
            raise error

    def command(self, site: str = "command") -> Exception | None:
        """Count a command that starts; returns what it ends with if it is to fail."""
        self.calls[site] += 1
        for fault in self._faults:
            count = self.calls[site]
            if fault.site == site and (count == fault.n or (fault.persistent and count > fault.n)):
                return fault.error(f"injected: {site} {count} failed")
        return None
