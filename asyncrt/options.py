"""Every knob of the runtime, in one frozen record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import attrs

from .arguments import shown
from .errors import PrecisionError
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


@attrs.frozen(kw_only=True)
class RuntimeOptions:
    """How a `Runtime` behaves. Every optimisation can be switched off; results are the same either way.

    Attributes:
        skip: Skip nodes that turn out to be no-ops for the shapes at hand. False runs every one of them.
        views: Leave the results of Slice, Split, Transpose, Expand and the like where they are, for readers that take
            strides. False writes each out, unless it is skipped; so does `skip=False`.
        in_place: Let inputs of a Concat be written where they belong in its result. False copies them.
        replay: Keep the plan of a shape signature and use it again. False plans every inference anew.
        precision: "fp32", or "bf16": round constant weights of products and convolutions to bfloat16, and keep them so.
        integer_products: Where a model dequantises both operands of a product, multiply the integers, on CPUs. False
            dequantises them first, as the model says; results may differ by one step of what is quantised next.
        fuse: Carry several nodes out as one kernel where the shapes at hand allow it. False runs each on its own.
        packed_weights: Multiply by weights packed for the device. False uses each operator's generic kernel.
        preset: Set the arguments of launches beforehand for plans that are replayed often. False sets them each time.
        native_submit: Enqueue the launches of plans, preset or not, by a loop in C, where it was built. False makes the
            same calls from Python.
        hold_tiny: Let the device begin on a plan of tiny launches when all of them are enqueued, with a driver that
            gains by it. False lets it begin on the first.
        native_callbacks: Have the driver wake the event loop when commands are done, where native code for that was
            built and the driver can be trusted with it. False has a thread wait on each stream, which on Intel's
            runtime works along with the others.
        specialise: Build kernels for sizes that come often in the background, and use those that are faster.
        share_steps: Let steps of a group's sequences run as one inference where the model allows it. False runs each by
            itself.
        pinned: Transfer through pinned memory, on a device that has memory of its own. False leaves it to the driver.
        spin: Let a driver that keeps a core busy while it waits do so, one for each stream. False looks now and then
            instead; None does so where there are fewer cores than streams and an event loop need.
        branches: Run the branches of one inference side by side on several streams. False runs one after the other;
            None does so where the device is a GPU and branches leave parts of it idle.
        pool: Give memory back to a pool that orders reuse by events. False allocates for each inference.
        preallocate: Allocate more than is needed now where sizes grow. False allocates what is needed.
        map_files: Leave the large tensors of a model's files there, and read them when they are needed. False reads
            files as a whole, and keeps their tensors in memory.
        page_constants: Keep large constants in files without a name in `cache_dir`, of which the system keeps in memory
            what is used: those that loading calculates, and those that kernels on a CPU read as the model has them.
            False keeps them in memory; so does `disk_cache=False`.
        max_in_flight: Inferences that may hold device memory at once; more wait their turn.
        memory_limit: Bytes of device memory for intermediates, and bytes that a request may make on the host; None is
            nine tenths of the device's memory, and half of the host's.
        weights_bytes: Bytes of constants per model beyond which those that no plan in use reads leave; None keeps all.
        idle_release_s: Seconds without a request after which free memory goes back to the device; None keeps it.
        collect_when_idle: Let Python's full garbage collections, in which the event loop stands still, wait until no
            request is there, and go through no model then. False lets Python collect when it likes.
        recipes: Make the plan of a new shape by the formulas of another shape's, where its decisions hold. False plans
            every new shape from the start; so does `replay=False`.
        foresee: Make the plan of a sequence's next step by recipe while the device works on the one before. False makes
            it when the step comes; so does `recipes=False`.
        plan_entries: Plans kept per model, the least recently used leave first.
        plan_bytes: Bytes of host memory that they may take, roughly.
        preset_entries: Launches whose arguments are set beforehand; those of the plan used longest ago leave first.
        policy: Name of a file in `scheduler/policies`: which inference goes next, and to which stream.
        cache_dir: Where compiled kernels are kept; None is a folder of the user's cache directory.
        disk_cache: False neither reads nor writes compiled kernels on disk.
        warm: Build, while loading, the kernels that likely shapes will need.
        build_threads: Kernels built at once.
        check_hazards: Check that all commands on the same bytes are ordered, as each is enqueued; see docs/hazards.md.
            None is what the environment variable ASYNCRT_CHECK_HAZARDS says, and False where it is not set.
        build_timeout_s: Seconds that the driver has to build a kernel.
        impl_cache_entries: Built kernels kept, the least recently used leave first.
        impl_cache_bytes: Bytes of their binaries kept, likewise.
        max_model_bytes: Models (with their external data) larger than this are refused.
        max_rank: Models with tensors of higher rank are refused.
        max_folded_bytes: A constant sub-expression whose result is larger stays unfolded.
    """

    skip: bool = switch(True)
    views: bool = switch(True)
    in_place: bool = switch(True)
    replay: bool = switch(True)
    precision: Precision = attrs.field(default="fp32", validator=_known_precision)
    integer_products: bool = switch(True)
    fuse: bool = switch(True)
    packed_weights: bool = switch(True)
    preset: bool = switch(True)
    native_submit: bool = switch(True)
    hold_tiny: bool = switch(True)
    native_callbacks: bool = switch(False)
    specialise: bool = switch(False)
    share_steps: bool = switch(True)
    pinned: bool = switch(True)
    spin: bool | None = switch(None)
    branches: bool | None = switch(None)
    pool: bool = switch(True)
    preallocate: bool = switch(True)
    map_files: bool = switch(True)
    page_constants: bool = switch(True)
    max_in_flight: int = counted(64)
    memory_limit: int | None = counted(None)
    weights_bytes: int | None = counted(None)
    idle_release_s: float | None = measured(30.0, 0, optional=True)
    collect_when_idle: bool = switch(True)
    recipes: bool = switch(True)
    foresee: bool = switch(True)
    plan_entries: int = counted(256)
    plan_bytes: int = counted(64 << 20)
    preset_entries: int = counted(16384)
    policy: str = "fifo"
    cache_dir: Path | None = path_or_none()  # noqa: RUF009  # a field
    disk_cache: bool = switch(True)
    warm: bool = switch(True)
    build_threads: int = counted(2, most=1024)
    check_hazards: bool = attrs.field(default=None, converter=_hazards_are_checked, validator=check_switch)
    build_timeout_s: float = measured(120.0, 1e-3)
    impl_cache_entries: int = counted(4096)
    impl_cache_bytes: int = counted(256 << 20)
    max_model_bytes: int = counted(8 << 30)
    max_rank: int = counted(8)
    max_folded_bytes: int = counted(16 << 20, 0)
