"""Where the server listens, and with which certificate."""

from __future__ import annotations

import errno
import ssl
from pathlib import Path

import attrs

from .errors import WrongSettings


@attrs.frozen
class Address:
    """A host and a port; port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def no_address(what: str, address: Address, error: Exception, option: str) -> WrongSettings:
    """Return what a user is told whose address cannot be had, or whose certificate cannot be used.

    Args:
        what: Is to be served there.
        option: By which the port is chosen.
    """
    taken = "it is in use, or not this machine's" if type(error) is RuntimeError else None  # gRPC does not say which
    if isinstance(error, OSError):
        taken = "another program uses it" if error.errno == errno.EADDRINUSE else None
    why = taken or getattr(error, "strerror", None) or str(error)
    hint = f"choose another port by {option}; 0 is any that is free" if taken else ""
    return WrongSettings(f"cannot serve {what} on {address}: {why}", hint=hint)


@attrs.frozen
class Tls:
    """A certificate and its key, in files of PEM."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return what connections of HTTP are made with."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


@attrs.frozen(kw_only=True)
class Doors:
    """Where and to whom the server is open.

    Attributes:
        grpc: None serves no gRPC.
        tls: None is plain text.
        key: What callers have to carry; None asks for nothing.
    """

    http: Address = Address("127.0.0.1", 8000)
    grpc: Address | None = Address("127.0.0.1", 8001)
    tls: Tls | None = None
    key: str | None = attrs.field(default=None, repr=False)
