"""`asyncrt devices`: what can a model run on here, and what is in the way of the rest?"""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated

import attrs
import typer
from rich.markup import escape
from rich.table import Table

from asyncrt.devices.find import driver_problems, list_devices, why_launched_from_python
from asyncrt.devices.opencl.drivers import INSTALL_HINT
from asyncrt.errors import NoDeviceError

from .terminal import reporting, stderr, stdout


@reporting
def devices(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the devices found, whether each works, and if not, why.

    Exits with 0 if an OpenCL device works, otherwise with 1.

    \b
    Example:
      asyncrt devices
    """
    reports, problems, slow = list_devices(), driver_problems(), why_launched_from_python()
    if as_json:
        found = {"devices": [attrs.asdict(r) for r in reports], "problems": problems, "native_submit": not slow}
        typer.echo(json.dumps(found, indent=2))
    else:
        table = Table("device", "name", "kind", "driver", "usable", "note", box=None, header_style="bold")
        for r in reports:
            usable = "[green]yes" if r.usable else "[red]no"
            lines = [r.note] + ([f"hint: {r.hint}"] if r.hint else [])
            table.add_row(*map(escape, (r.spec, r.name, r.kind, r.platform)), usable, escape("\n".join(lines)))
        stdout().print(table)
        how = f"from Python: {slow}" if slow else "by native code"
        for kind, number in Counter(r.kind for r in reports if r.usable).items():
            if number > 1:
                stdout().print(f"{kind}:* is all {number} of a kind")
        stdout().print(f"plans that are replayed are enqueued {escape(how)}", soft_wrap=True)
        for problem in problems:
            stderr().print(f"[yellow]problem:[/] {escape(problem)}", soft_wrap=True)
    if not any(r.usable and r.kind not in ("host", "simulated") for r in reports):
        raise NoDeviceError("no OpenCL device works here", hint=INSTALL_HINT)
