"""For how long does a plan keep who waits for it, and which way does a request go by that?

Decisions of `direct.py` that need nothing but numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import attrs

BRIEF_S = 500e-6
"""For which the caller's thread may be kept, by a request or by an iteration of a loop: not much longer than the
general way takes to hand it from thread to thread."""
ASIDE_S = 10e-3
"""For which a thread without Python may carry out a request that nobody is beside. Who comes meanwhile waits for its
end; of one that takes longer, what it takes between threads is no more than a few hundredths."""
LAUNCH_S = {"cpu": 1e-6, "gpu": 8e-6}
"""For which the general way keeps the event loop's thread for each launch at least, by kind of device: hosts differ."""
BESIDE_S = 150e-6
"""For which callers who ask at once wait for each other: what the general way takes of the event loop's thread."""
_GAIN = 0.75
"""Of what that was measured to take, for which they do as well."""
_OWN_PART, _GENERAL_S = 0.25, 300e-6  # see `own_part`
_FORGETS_OTHER, _FORGETS_LEAST = 0.999, 1.01
_LEAST_S = 1e-6  # of an iteration
_OUTLIER = 2  # times what is usual
_TRIES = 3  # the first may have to make what the next ones find


class Way(NamedTuple):
    """Whether a request runs on its caller's thread, and why."""

    direct: bool
    why: str


def choose_way(
    usual_s: float | None, *, alone: bool, late: bool = False, most_s: float = BRIEF_S
) -> Way:
    """Return which way a request goes whose plan is known.

    Args:
        usual_s: For how long the device keeps who waits for such a plan; None if that was not measured yet.
        alone: Whether nothing is on a stream, nobody looks on, and no other request is there, or none that would be
            answered sooner otherwise.
        late: Whether its deadline has passed.
        most_s: For how long the thread may be kept.
    """
    if not alone:
        return Way(False, "others are there, or look on")
    if late:
        return Way(False, "its deadline has passed")
    if usual_s is None:
        return Way(False, "nobody has measured yet how long it takes")
    if usual_s > most_s:
        return Way(False, "the device takes too long to wait for it")
    return Way(True, "it is brief, and nobody else is there")


def may_keep_s(launches: int, launch_s: float) -> float:
    """Return for how long a request of so many launches may keep its caller's thread: on the general way they would,
    for *launch_s* each."""
    return BRIEF_S + launch_s * launches


def own_part(general_s: float) -> float:
    """Return what the device takes, by a guess, of the seconds that a request takes on the general way.

    The rest goes between threads: most of a brief request's time, and a few tenths of a millisecond of any other's.
    """
    return max(general_s * _OWN_PART, general_s - _GENERAL_S)


@attrs.define
class Usual:
    """For how long a plan keeps who waits for it, lately.

    Attributes:
        together: In seconds, with all threads of the device.
        single: With the caller's thread alone; None if that was not tried.
        tries: How often that was tried.
        guessed: Whether no request has run directly yet.
        latest: What the last one took that has.
        least: What one took that nothing was in the way of; forgotten slowly.
        beside: What one of many takes that are on the general way at once, from one end to the next; 0 if none did.
    """

    together: float
    single: float | None = None
    tries: int = 0
    guessed: bool = True
    latest: float = _LEAST_S
    least: float = math.inf
    beside: float = 0.0

    @property
    def seconds(self) -> float:
        """The better way's."""
        return self.together if self.single is None else min(self.together, self.single)

    @property
    def gains_beside(self) -> bool:
        """Whether callers who ask at once are answered sooner one after the other than on the general way.

        That goes by the least: threads of the device that look for more work are for milliseconds in the way of the
        first behind those on the general way.
        """
        return min(self.least, self.seconds) <= max(BESIDE_S, _GAIN * self.beside) and self.seconds <= BRIEF_S

    @property
    def prefers_single(self) -> bool:
        """Whether the caller's thread is to do it alone, where the device can do that."""
        return self.tries < _TRIES or self.single is None or self.single <= self.together

    def took(self, seconds: float, *, single: bool) -> None:
        """Note how long a request took.

        One that took far longer than usual, and than the one before it, counts as one that took somewhat longer. What
        is known of the other way is forgotten slowly, so that it is tried again.
        """
        before, self.latest, self.guessed = self.latest, max(seconds, _LEAST_S), False
        self.least = min(seconds, _FORGETS_LEAST * self.least)
        seconds = min(seconds, 4 * BRIEF_S)
        if not single:
            self.together += (min(seconds, max(before, _OUTLIER * self.together)) - self.together) / 4
            if self.single is not None:
                self.single *= _FORGETS_OTHER
        else:
            self.tries += 1
            if self.single is None or (self.tries <= _TRIES and seconds < self.single):
                self.single = seconds
            else:
                self.single += (min(seconds, max(before, _OUTLIER * self.single)) - self.single) / 4
            self.together *= _FORGETS_OTHER
