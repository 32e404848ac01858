"""How many bytes may a request, or the loading of a model, make on the host? Asked before any of them is allocated.

What counts is what asyncrt makes there itself: results of nodes on the host with what they need on the way, what
iterations collect, copies of inputs, batches, results. A request counts by itself, so that whether it fails does not
depend on what others do.
"""

from __future__ import annotations

from types import TracebackType

from asyncrt.devices.host import physical_memory
from asyncrt.errors import AsyncrtError, OutOfHostMemory


def host_limit(memory_limit: int | None) -> int:
    """Return the most bytes that a request may make on the host; None is half of the machine's memory."""
    return physical_memory() // 2 if memory_limit is None else memory_limit


class HostBudget:
    """Bytes made on the host so far, and how many there may be.

    Attributes:
        limit: The most.
        used: What was taken of it, and is not given back as long as the request goes on.
    """

    __slots__ = ("limit", "used")

    def __init__(self, limit: int, used: int = 0) -> None:
        self.limit, self.used = limit, used

    def __repr__(self) -> str:
        return f"<HostBudget {self.used} of {self.limit}>"

    def fits(self, nbytes: int) -> bool:
        """Whether there may be so many more."""
        return self.used + nbytes <= self.limit

    def check(self, nbytes: int, what: str) -> None:
        """Raise unless there may be so many more, which are given back soon.

        Args:
            what: Wants them; begins the message.

        Raises:
            OutOfHostMemory: With *what*, what it wants, what is used and the limit.
        """
        if self.used + nbytes > self.limit:
            raise OutOfHostMemory(
                f"{what}: {nbytes} bytes wanted on the host; {max(self.limit - self.used, 0)} free within the limit "
                f"of {self.limit} for a request",
                hint="send a smaller request, or raise RuntimeOptions.memory_limit",
            )

    def take(self, nbytes: int, what: str) -> None:
        """Note that there are so many more; raises as `check()`."""
        self.check(nbytes, what)
        self.used += nbytes

    def inner(self) -> HostBudget:
        """Return a budget for part of the request; what that part takes is given back when it is over."""
        return HostBudget(self.limit, self.used)


class allocating:
    """Turn a refusal of the system, which NumPy tells as `MemoryError`, into `OutOfHostMemory`.

    Args:
        what: Wants the memory; begins the message.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, MemoryError) and not isinstance(error, AsyncrtError):
            raise refused(self._what, error) from error


def refused(what: str, error: MemoryError) -> OutOfHostMemory:
    """Return what is raised where the system itself gives no memory."""
    return OutOfHostMemory(f"{what}: the system gives no memory for it", detail=str(error))
