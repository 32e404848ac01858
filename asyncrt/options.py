"""Every option of the runtime, in one frozen record."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import attrs

from .arguments import shown
from .errors import PrecisionError
from .mechanisms import BUILDS_ON, Mechanism, mechanisms
from .option_fields import check_switch, counted, measured, path_or_none, switch

Precision: TypeAlias = Literal["fp32", "bf16"]


def _known_precision(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, str) or value not in get_args(Precision):
        raise PrecisionError(
            f"RuntimeOptions.precision must be one of {', '.join(get_args(Precision))}, got {shown(value)}",
            hint="a model is run in int8 where it is quantised itself; docs/precision.md",
        )


def _hazards_are_checked(wanted: bool | None) -> bool:
    return os.environ.get("ASYNCRT_CHECK_HAZARDS", "0") not in ("", "0") if wanted is None else wanted


def _without(names: Iterable[str]) -> frozenset[Mechanism]:
    """Return the mechanisms of these names, and those that the environment has everybody do without."""
    return mechanisms(names) | mechanisms(os.environ.get("ASYNCRT_WITHOUT", "").replace(",", " ").split())


def _in_order(names: Iterable[str]) -> str:
    return f"{{{', '.join(map(repr, sorted(names)))}}}"


@attrs.frozen(kw_only=True)
class RuntimeOptions:
    """How a `Runtime` behaves.

    Attributes:
        without: Names of mechanisms that the runtime does without, such as {"skip", "replay"}, so that one can compare;
            `asyncrt.mechanisms.MECHANISMS` says what each is. Those that the environment variable ASYNCRT_WITHOUT
            names are added.
        precision: "fp32", or "bf16": constant weights of products and convolutions are rounded to bfloat16.
        branches: Branches of one inference run side by side on several streams. None: where the device is a GPU and
            they leave parts of it idle.
        specialise: Kernels are built in the background for sizes that come often, and used if they are faster.
        policy: The name of a file in `scheduler/policies`, which chooses the next inference and its stream.
        spin: A driver that keeps a core busy while it waits may do so. None: where there is a core for each stream.
        max_in_flight: Inferences that may hold device memory at once; more wait for their turn.
        memory_limit: Bytes of device memory for intermediates, and bytes that a request may make on the host. None:
            nine tenths of the device's memory, and half of the host's.
        weights_bytes: Bytes of constants that a model keeps on the device; what is in use stays. None: all.
        idle_release_s: Seconds without a request after which free memory goes back to the device. None: never.
        collect_when_idle: Python's full garbage collections, which stop the event loop, wait until no request is there.
            This changes the garbage collector of the process.
        plan_bytes: Bytes of host memory for the plans of a model. One launch is prepared beforehand for every 4096.
        cache_dir: The folder of compiled kernels, and of what models became. None: one of the user's cache directory.
        warm: Loading a model builds the kernels that likely shapes need.
        load_patience_s: Seconds that loading waits for kernels; then they are built beside the requests, as
            `Model.ready()` waits for. Without the mechanism "stand_in" it waits for all of them.
        build_threads: Programs that are built at once. None: as many as suit the device and its driver.
        build_timeout_s: Seconds that the driver has to build a kernel.
        kernel_cache_bytes: Bytes of host memory for built kernels, at 128 KiB and more for each.
        check_hazards: Each command is checked to be ordered with all others on the same bytes (docs/hazards.md). None:
            as the environment variable ASYNCRT_CHECK_HAZARDS says.
        max_model_bytes: Larger models, their external data counted, are refused.
        max_rank: Models that have tensors with more axes are refused.
        max_nodes: Models of more nodes are refused; nodes of graphs in nodes count, and of functions written out.
        max_iterations: A request whose `Loop` and `Scan` nodes together go round more often fails.
        max_folded_bytes: A constant sub-expression whose result is larger is not computed while loading.
    """

    # Mechanisms.
    without: frozenset[Mechanism] = attrs.field(default=frozenset(), converter=_without, repr=_in_order)
    precision: Precision = attrs.field(default="fp32", validator=_known_precision)
    branches: bool | None = switch(None)
    specialise: bool = switch(False)
    policy: str = "fifo"
    spin: bool | None = switch(None)
    # Memory.
    max_in_flight: int = counted(64)
    memory_limit: int | None = counted(None)
    weights_bytes: int | None = counted(None)
    idle_release_s: float | None = measured(30.0, 0, optional=True)
    collect_when_idle: bool = switch(False)
    plan_bytes: int = counted(64 << 20)
    # Kernels.
    cache_dir: Path | None = path_or_none()  # noqa: RUF009  # a field
    warm: bool = switch(True)
    load_patience_s: float = measured(0.5, 0)
    build_threads: int | None = counted(None, most=1024)
    build_timeout_s: float = measured(120.0, 1e-3)
    kernel_cache_bytes: int = counted(512 << 20)
    # Checks.
    check_hazards: bool = attrs.field(default=None, converter=_hazards_are_checked, validator=check_switch)
    # Limits for models.
    max_model_bytes: int = counted(8 << 30)
    max_rank: int = counted(8)
    max_nodes: int = counted(1 << 18)
    max_iterations: int = counted(10_000_000)
    max_folded_bytes: int = counted(16 << 20, 0)

    def uses(self, mechanism: Mechanism) -> bool:
        """Whether the runtime has a mechanism, and those that it builds on."""
        wanted: Mechanism | None = mechanism
        while wanted is not None:
            if wanted in self.without:
                return False
            wanted = BUILDS_ON.get(wanted)
        return True
