"""The options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from asyncrt.devices.base import DeviceInfo
from asyncrt.errors import ArgumentError
from asyncrt.mechanisms import MECHANISMS, mechanisms
from asyncrt.options import Precision as Words

from .arrivals import BURST, Pattern

MOST_AT_ONCE = 65536  # requests in flight: each is a coroutine, or a thread of ONNX Runtime's


def finite(value: float | None) -> float | None:
    """Return an option's value; NaN and infinity are in every range that a command line checks."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"expected a finite number, got {value}")
    return value


def known_mechanisms(names: list[str] | None) -> list[str] | None:
    """Return the names; one that is no mechanism's is refused."""
    try:
        mechanisms(names or ())
    except ArgumentError as error:
        raise typer.BadParameter(f"{error.message}; {error.detail}") from error
    return names


def shown_devices(infos: Iterable[DeviceInfo]) -> str:
    """Return what is said of the devices that models run on."""
    return "; ".join(f"{info.spec}, {info.name}" for info in infos)


def document_of(infos: Sequence[DeviceInfo]) -> dict[str, Any]:
    """Return what a document says of the devices that were measured: of several also how many."""
    first = infos[0]
    device = {"spec": first.spec, "name": first.name, "platform": first.platform, "driver": first.driver}
    if len(infos) == 1:
        return {"device": device}
    return {"device": device, "devices": [info.spec for info in infos]}


def on_the_device(without: list[str] | None) -> set[str]:
    """Return what a command does without that says how a device does: every request waits for its kernels."""
    return {*(without or ()), "stand_in"}


Model: TypeAlias = Annotated[
    Path, typer.Argument(metavar="MODEL", exists=True, dir_okay=False, readable=True, help="An ONNX file.")
]
Inputs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input", "-i", metavar="NAME=SHAPE|FILE", help="An input's shape, as 2x16 or 2,16, or .npy file. Repeatable."
    ),
]
Shapes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--shape", "-s", metavar="DIM=SIZE", help="The size of a dynamic dim, by its name. Repeatable."),
]
Ranges: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        metavar="NAME=LOW:HIGH",
        help="Draw an input's values from LOW up to, not including, HIGH. Repeatable. Without it floats are normal, "
        "integers are 0 or 1, and integer masks are ones.",
    ),
]
Seed: TypeAlias = Annotated[int, typer.Option(min=0, help="Of the random inputs.")]
Device: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--device",
        "-d",
        help="A device as `asyncrt devices` names it; the best by default. gpu:* is all of a kind; several have "
        "commas between them.",
    ),
]
Streams: TypeAlias = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Command queues; as many as suit the device.")
]
Arrivals: TypeAlias = Annotated[
    Pattern, typer.Option(help=f"How callers come: each at random, or {BURST} at once, at random.")
]
Lengths: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--lengths",
        metavar="DIM=...",
        help="How a dim's sizes are drawn: lognormal:MEDIAN:SIGMA:MOST, uniform:LEAST:MOST, or a FILE with one on each "
        "line. Repeatable.",
    ),
]
Without: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", callback=known_mechanisms, help=f"Do without a mechanism: {', '.join(MECHANISMS)}. Repeatable."
    ),
]
Precision: TypeAlias = Annotated[
    Words, typer.Option(help="Of the constant weights of products and convolutions.")
]
