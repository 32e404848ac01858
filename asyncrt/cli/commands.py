"""The commands of the command line: `asyncrt devices`, `run`, `bench`, `serve`, `warm` and more, one file each."""

from __future__ import annotations

from typing import Annotated

import typer

from asyncrt.version import __version__

from . import bench, devices, explain, run, serve, trace, tune, warm

app = typer.Typer(
    name="asyncrt",
    help="Run ONNX models with dynamic shapes on any OpenCL device.",
    epilog="Start with `asyncrt devices`; `asyncrt COMMAND --help` has an example of each command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(devices.devices)
app.command()(run.run)
app.command()(explain.explain)
app.command()(trace.trace)
app.command()(bench.bench)
app.command()(tune.tune)
app.command()(serve.serve)
app.command()(warm.warm)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"asyncrt {__version__}")
        raise typer.Exit


@app.callback()
def _asyncrt(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass  # the options of `asyncrt` itself; its help is above
