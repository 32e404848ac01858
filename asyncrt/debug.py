"""Did a runtime order all that it enqueued? For whoever changes it, or suspects it.

    options = asyncrt.RuntimeOptions(check_hazards=True)
    async with asyncrt.Runtime(options=options) as rt:
        ...
        print(asyncrt.debug.check(rt))
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import attrs

from asyncrt.errors import AsyncrtError
from asyncrt.memory.hazards import Entry, Hazard
from asyncrt.runtime.runtime import Runtime

from .runtime.watch.checked import Checks


@attrs.frozen
class HazardReport:
    """What was checked of a runtime so far.

    Attributes:
        commands: Commands enqueued, on all streams.
        in_flight: Accesses among them that the host has not seen passed.
        hazards: Unordered accesses: the first hundred. Each was raised as a `HazardError` when it was enqueued.
    """

    commands: int
    in_flight: int
    hazards: tuple[Hazard, ...]

    def __str__(self) -> str:
        line = f"{self.commands} commands checked, {self.in_flight} accesses in flight, {len(self.hazards)} hazards"
        return "\n\n".join((line, *map(str, self.hazards)))


def check(runtime: Runtime) -> HazardReport:
    """Return the report of a runtime that is or was open.

    Raises:
        AsyncrtError: It was opened without `RuntimeOptions.check_hazards`.
    """
    each = _checks(runtime)
    return HazardReport(
        sum(checks.checker.commands for checks in each),
        sum(checks.checker.in_flight for checks in each),
        tuple(hazard for checks in each for hazard in checks.hazards),
    )


def recording(runtime: Runtime) -> AbstractContextManager[list[Entry]]:
    """Return a context that gives a list, and adds to it what the runtime does while it lasts.

    A recording that begins before the runtime's first request can be checked again, or changed and then checked, with
    `asyncrt.memory.hazards.check()`.

    Raises:
        AsyncrtError: It was opened without `RuntimeOptions.check_hazards`, or has several devices.
    """
    checks = _checks(runtime)
    if len(checks) > 1:
        raise AsyncrtError("what several devices do is not one order", hint="open a runtime on one device to record it")
    return checks[0].recording()


def _checks(runtime: Runtime) -> list[Checks]:
    checks = [session.checks for session in runtime.sessions if session.checks is not None]
    if not checks:
        raise AsyncrtError(
            "hazards of this runtime are not checked", hint="open it with asyncrt.RuntimeOptions(check_hazards=True)"
        )
    return checks
