"""The head of an answer and its body in one write, where the server writes them one after the other.

Two would be two calls of the system here, and wake the caller twice.
"""

from __future__ import annotations

import asyncio
from typing import Any

_TOGETHER = 1 << 16  # bytes that are copied rather than written by another call


class JoinedWrites:
    """A transport that holds a short write back until the next one, which goes with it, or until the loop's next turn.

    What it does not say here is the transport's own.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held = b""
        self._soon = asyncio.get_running_loop().call_soon

    def write(self, data: bytes) -> None:
        """Write, now or soon."""
        held, self._held = self._held, b""
        if len(data) > _TOGETHER:
            if held:
                self._transport.write(held)
            self._transport.write(data)
        elif held:
            self._transport.write(held + data)
        else:
            self._held = data
            self._soon(self._flush)

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)

    def close(self) -> None:
        """Close it; what was written is sent."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close it; what was not sent is lost."""
        self._held = b""
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
