"""A process that compiles OpenCL C for the one that started it, until that closes the pipe or asks for nothing more.

It is started as a script and imports nothing of asyncrt, whose import takes longer than that of pyopencl. Its arguments
are the pipe that says whether it gives way, the device's ``platform:device`` and the libraries to load first;
`compilers.py` has the other end of the pipes. It is started without `site`, which takes longer than all else of
Python's start, and imports that once it gives way.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import sys
import threading
from typing import Any, BinaryIO

REQUEST, ANSWER = struct.Struct("<QQ"), struct.Struct("<BQ")
READY, COMPILED, REFUSED = range(3)
IDLE_S = 10.0  # without a request, after which the process ends
HURRY, GIVE_WAY = b"\0", b"\1"
"""What comes on the pipe that says whether it gives way."""
_YIELD_S = 2e-4
"""After which a process that gives way offers the processor again, also while the driver compiles.

A driver's threads offer theirs (`sched_yield`) while they wait for the next kernel, and had it back at the next tick of
Linux's clock only, as much as four milliseconds later, when a process that compiles had taken it. A lower priority
would give way as well, but a process that has one may not take it back when somebody waits for what it compiles.
"""


def received(pipe: BinaryIO, nbytes: int) -> bytes:
    """Return so many bytes, which may come in pieces; raises `EOFError` where the pipe ends before."""
    data = bytearray()
    while len(data) < nbytes:
        piece = pipe.read(nbytes - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


class Offers:
    """Offers the processor again and again while there is work, as long as others go first.

    Args:
        said: A pipe on which comes whether they do; they do at first, on Linux.
    """

    def __init__(self, said: int) -> None:
        self._lock = threading.Lock()
        self._gives_way = self._works = False
        if sys.platform == "linux":
            libc = ctypes.CDLL(None)
            libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
            # The handler is C's own: one of Python's would not run before the driver returns.
            libc.signal(signal.SIGALRM, ctypes.cast(libc.sched_yield, ctypes.c_void_p))
            self._gives_way = True
            threading.Thread(target=self._listen, args=(said,), daemon=True).start()

    def __enter__(self) -> None:
        self._set(works=True)

    def __exit__(self, *_: object) -> None:
        self._set(works=False)

    def _listen(self, said: int) -> None:
        while last := os.read(said, 1 << 10)[-1:]:
            self._set(gives_way=last == GIVE_WAY)

    def _set(self, *, works: bool | None = None, gives_way: bool | None = None) -> None:
        if sys.platform != "linux":
            return
        with self._lock:
            self._works = self._works if works is None else works
            self._gives_way = self._gives_way if gives_way is None else gives_way
            every = _YIELD_S if self._works and self._gives_way else 0.0
            signal.setitimer(signal.ITIMER_REAL, every, every)


def main() -> None:
    """Answer requests."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a driver prints is no answer
    said, place, *libraries = sys.argv[1:]
    offers = Offers(int(said))
    with offers:
        if sys.flags.no_site:
            import site

            site.main()  # where pyopencl is found
        for library in libraries:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        import pyopencl as cl

        platform, device = map(int, place.split(":"))
        chosen = cl.get_platforms()[platform].get_devices()[device]
        context = cl.Context([chosen])
    _send(answers, READY, b"")
    requests: Any = os.fdopen(0, "rb", buffering=0)  # so that `select` sees all that has come
    while select.select([requests], [], [], IDLE_S)[0]:
        try:
            options, text = REQUEST.unpack(received(requests, REQUEST.size))
            given = received(requests, options), received(requests, text)
            with offers:
                kind, answer = _compiled(cl, context, chosen, *given)
        except EOFError:
            return
        _send(answers, kind, answer)


def _compiled(cl: Any, context: Any, device: Any, options: bytes, text: bytes) -> tuple[int, bytes]:
    # As asyncrt's own process does it: pyopencl's `Program.build` keeps a cache beside ours.
    program = cl._cl._Program(context, text.decode())
    try:
        program._build(options, [device])
    except cl.Error as error:
        return REFUSED, str(error).encode()
    return COMPILED, program.get_info(cl.program_info.BINARIES)[0]


def _send(answers: BinaryIO, kind: int, answer: bytes) -> None:
    answers.write(ANSWER.pack(kind, len(answer)) + answer)
    answers.flush()


if __name__ == "__main__":
    main()
