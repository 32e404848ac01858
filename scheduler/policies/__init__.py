"""One policy per file, chosen by the file's name: `RuntimeOptions(policy="fifo")`."""

from __future__ import annotations

import importlib
import pkgutil

from asyncrt.arguments import shown
from asyncrt.errors import ArgumentError

from .base import Policy, StreamView

__all__ = ["Policy", "StreamView", "make_policy", "policy_names"]


def policy_names() -> tuple[str, ...]:
    """Return the policies there are: the files of this folder."""
    return tuple(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base")


def make_policy(name: str) -> Policy:
    """Return a new policy; raises `ArgumentError` if there is none of that name."""
    if not isinstance(name, str) or name not in policy_names():
        raise ArgumentError(f"policy {shown(name)} is not one of {', '.join(policy_names())}")
    policy: Policy = importlib.import_module(f"{__name__}.{name}").Policy()
    return policy
