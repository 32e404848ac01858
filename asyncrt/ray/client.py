"""How does Python ask a deployment, without HTTP? Through Ray, which shares arrays between processes.

Errors are those of asyncrt, whichever process they come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import ray.exceptions  # pyright: ignore[reportMissingImports]
import ray.serve.exceptions  # pyright: ignore[reportMissingImports]

from asyncrt.errors import AsyncrtError, Overloaded
from asyncrt.layout import Array
from asyncrt.serve.errors import Unavailable

_RETRY_S = 1.0


class ReplicaLost(AsyncrtError, ConnectionError):
    """The process that had the request ended before the answer; another one may be asked."""


class Client:
    """Asks a deployment.

    Args:
        handle: What `ray.serve.run()` returned, or `ray.serve.get_app_handle()`.
        multiplexed: Whether the deployment has `max_models`, so that requests go where their model is.
    """

    def __init__(self, handle: Any, *, multiplexed: bool = False) -> None:
        self._handle, self._multiplexed = handle, multiplexed

    async def infer(
        self, inputs: Mapping[str, Array], *, model: str = "", version: str = "", outputs: tuple[str, ...] = (),
        priority: int = 0, timeout_s: float | None = None,
    ) -> dict[str, Array]:  # fmt: skip
        """Run a model once; cancelling this cancels the request in its replica.

        Args:
            inputs: Arrays by name.
            model: Its name; "" is the only one.
            version: "" is the newest.
            outputs: Those that are wanted; none are all.
            priority: 1 goes first; 0 is the model's own.
            timeout_s: Seconds in which an answer is of use.

        Raises:
            AsyncrtError: What `Model.infer()` raises, or what the server refuses.
            Overloaded: Too many requests wait, here or there.
            ReplicaLost: The process that had it ended.
        """
        handle = self._handle.options(multiplexed_model_id=model) if self._multiplexed else self._handle
        asked = handle.infer.remote(
            dict(inputs), model=model, version=version, outputs=outputs, priority=priority, timeout_s=timeout_s
        )
        try:
            found: dict[str, Array] = await asked
        except asyncio.CancelledError:
            asked.cancel()
            raise
        except Exception as error:
            raise _ours(error) from error
        return found


def _ours(error: Exception) -> Exception:
    """Return an error of Ray's as one of asyncrt's, if it is one in truth."""
    if isinstance(error, ray.serve.exceptions.BackPressureError):
        return Overloaded("as many requests wait for the deployment as may", retry_after_s=_RETRY_S)
    if isinstance(error, ray.serve.exceptions.DeploymentUnavailableError):
        return Unavailable("the deployment has no replica that works")
    if isinstance(error, ray.exceptions.RayActorError):
        return ReplicaLost("the process that had the request ended", hint="ask again: another one is there, or comes")
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, AsyncrtError) else error
