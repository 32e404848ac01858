"""The states of a request, and which may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

State: TypeAlias = Literal["waiting", "preparing", "ready", "launching", "running", "expired", "ended"]

MAY_BECOME: Mapping[State, tuple[State, ...]] = {
    "waiting": ("preparing", "expired", "ended"),  # admitted; its deadline passes; its caller leaves
    "preparing": ("ready", "ended"),  # a chunk is planned; it is done, has failed or was cancelled
    "ready": ("launching", "expired", "ended"),  # the policy chose a stream; its deadline passes; its caller leaves
    "launching": ("running", "ended"),  # all of the chunk is enqueued; it failed, or was too late
    "running": ("preparing", "ended"),  # the device has passed the chunk; its caller leaves
    "expired": ("ended",),
    "ended": (),
}
