"""A result that stays on the device: an input of other models there, read to the host when somebody asks for it.

Its memory belongs to events like any other: each request that reads it holds a claim of its own until the device has
passed it, so the tensor may go while they run. Nothing writes to it after it was made.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from asyncrt.devices.base import SeenByHost
from asyncrt.errors import NotOnHostError, RuntimeClosedError
from asyncrt.events import Event
from asyncrt.layout import Array, Layout, Shape
from asyncrt.loops import tell_loop
from asyncrt.memory.buffer import Lease
from asyncrt.runtime.loop.trio_bridge import Elsewhere, anywhere

if TYPE_CHECKING:
    from .session import Session

Read: TypeAlias = Callable[[Lease, Layout, tuple[Event, ...]], Coroutine[Any, Any, Array]]
"""Reads what lies in memory after some events."""

_CPU = 1  # kDLCPU, of DLPack


class DeviceTensor:
    """A tensor on a device. Made by `Model.infer_on_device()`; its memory is given back when nobody holds it any more.

    What the host calculates, such as shapes, and tensors without elements lie on the host; they are used alike.
    """

    def __init__(
        self,
        session: Session,
        layout: Layout,
        read: Read,
        lease: Lease | None = None,
        after: tuple[Event, ...] = (),
        host: Array | None = None,
    ) -> None:
        self._session, self._read, self._lease, self._after = session, read, lease, after
        #: How it is laid out, and its elements if they are on the host; for whoever runs models.
        self.layout, self.host = layout, host
        self._closed = False
        # Collection may happen on any thread; memory is given back on the loop's.
        self._forgotten = None if lease is None else weakref.finalize(self, tell_loop, session.loop, lease.drop, after)
        if self._forgotten is not None:
            self._forgotten.atexit = False

    def __repr__(self) -> str:
        where = "closed" if self._closed else "the host" if self._lease is None else self._session.name
        return f"<DeviceTensor {self.layout} on {where}>"

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return self.layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype, as NumPy has it."""
        return self.layout.dtype.numpy

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.layout.nbytes

    @property
    def device(self) -> str:
        """The device that it is on, by name, or "host"."""
        return "host" if self._lease is None else self._session.name

    @property
    def session(self) -> Session:
        """That of the device, for whoever runs models."""
        return self._session

    @property
    def elsewhere(self) -> Elsewhere | None:
        """Where its runtime runs if that is not the loop of its callers."""
        return self._session.elsewhere

    @anywhere
    async def numpy(self) -> Array:
        """Return its elements as an array of its own, when they have been read.

        Raises:
            RuntimeClosedError: The runtime, or this tensor, was closed.
            DeviceError: The device is lost, or a command failed.
        """
        self._check_open()
        self._session.check_here()
        if self._lease is None:
            assert self.host is not None
            return self.host.copy()
        lease = self._lease.hold()
        return await self._read(lease, self.layout, self._after)

    def held(self) -> tuple[Lease, tuple[Event, ...]] | None:
        """Return a claim on its memory, and the events after which it may be read; None if it is on the host."""
        self._check_open()
        return None if self._lease is None else (self._lease.hold(), self._after)

    def close(self) -> None:
        """Give its memory back when the device has passed what reads it; may be called on any thread, and again."""
        if self._forgotten is not None:
            self._forgotten()
        self._closed, self.host = True, None

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeClosedError("the tensor was closed", hint="keep it open until all that take it have begun")

    # Other libraries.

    def __array__(self, *given: Any, **more: Any) -> Array:
        raise NotOnHostError(
            f"a tensor on {self.device} is no array: reading it takes time that others could use",
            hint="use `await tensor.numpy()`",
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's name of the memory that it is in: the CPU's.

        Raises:
            NotOnHostError: It is in no memory that DLPack knows.
        """
        self._on_host()
        return _CPU, 0

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **given: Any) -> Any:
        """Return a capsule of DLPack, without a copy; whoever has it holds the memory, and must not write to it.

        It says so to those who know DLPack 1.0; others cannot be told.

        Args:
            max_version: The newest version that the caller knows.
            given: What else DLPack's protocol has, as NumPy takes it.

        Raises:
            NotOnHostError: It is in no memory that DLPack knows.
        """
        array = self._on_host()
        if max_version is not None and max_version >= (1, 0):
            array.flags.writeable = False
        return array.__dlpack__(max_version=max_version, **given)

    def _on_host(self) -> Array:
        """Return an array of its memory, which holds that."""
        self._check_open()
        self._session.check_open()
        if self._lease is None:
            assert self.host is not None
            return self.host.view()
        device = self._session.device
        seen = device.on_host(self._lease.allocation, self.nbytes) if isinstance(device, SeenByHost) else None
        if seen is None:
            raise NotOnHostError(
                f"a tensor on {self.device} is not in the host's memory, and is no memory that DLPack knows",
                hint="use `await tensor.numpy()`",
            )
        array = seen.view(self.dtype).reshape(self.shape)
        weakref.finalize(array, tell_loop, self._session.loop, self._lease.hold().drop, self._after).atexit = False
        return array
