"""`asyncrt bench --url`: what does a server make of requests that come whether or not others have been answered?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

from asyncrt.errors import AsyncrtError
from asyncrt.runtime.runtime import Runtime
from asyncrt.version import __version__
from asyncrt.writing import write_text

from .bench_batched import Wanted, table
from .load import Traffic
from .open_loop import Point, measure
from .terminal import note, stdout, wrong


async def bench_url(model: Path, url: str, name: str | None, wanted: Wanted) -> None:
    """Send requests at each rate to a server, and print and write what became of them.

    Args:
        model: An ONNX file, which says what requests are like; nothing runs here.
        url: The server's.
        name: The model's there; None goes by the file.
    """
    if wanted.rates is None:
        raise wrong("--url", "expected --rate as well: requests a second, as 100 or 50,100,200")
    try:
        from .v2_client import V2Client
    except ImportError as error:
        raise AsyncrtError(
            f"--url needs a package that is not installed: {error.name}", hint="pip install 'asyncrt[serve]'"
        ) from error
    async with Runtime("host") as runtime:
        traffic = Traffic((await runtime.load(model)).inputs, wanted.inputs, wanted.lengths, wanted.pattern)
    for source_name, source in traffic.sources().items():
        note(f"{source_name}: {source}")
    points: list[Point] = []
    async with V2Client(url, name or model.stem) as client:
        await measure("server", client.infer, wanted.rates[0], traffic.at_rate(wanted.rates[0], 1.0), None)
        for seed, rate in enumerate(wanted.rates, 1):
            requests = traffic.at_rate(rate, wanted.seconds, seed)
            points.append(await measure("server", client.infer, rate, requests, wanted.deadline))
    document: dict[str, Any] = {
        "url": url, "model": name or model.stem, "asyncrt": __version__, "arrivals": wanted.pattern,
        "seconds": wanted.seconds, "deadline": wanted.deadline, "points": [attrs.asdict(p) for p in points],
    }  # fmt: skip
    if wanted.json_file is not None:
        write_text(wanted.json_file, json.dumps(document, indent=2) + "\n")
    stdout().print(table(points, wanted.deadline))
