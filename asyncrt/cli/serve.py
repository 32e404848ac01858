"""`asyncrt serve`: models for others, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asyncrt.errors import AsyncrtError
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.runtime import Runtime
from asyncrt.scheduler.batching import BatchOptions

from . import options as o
from .terminal import note, reporting, wrong

if TYPE_CHECKING:
    from asyncrt.serve.options import Address, Doors

_KEY = "ASYNCRT_SERVE_KEY"
_MIB = 1 << 20
_GRPC_PORT = 8001

Source = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL_OR_REPOSITORY", exists=True, readable=True, help="An ONNX file, or a folder of them."
    ),
]
Host = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is open to other machines.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Of HTTP; 0 is any that is free.")]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        min=-1, max=65535, show_default=f"{_GRPC_PORT}, where gRPC is installed",
        help="Of gRPC; 0 is any that is free, and -1 serves none.",
    ),
]  # fmt: skip
Name = Annotated[str | None, typer.Option(help="What the model of a single file is called; else as its file.")]
Batching = Annotated[
    bool, typer.Option("--batched", help="Put requests together, of models whose settings say nothing of batching.")
]
Config = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="The same, with the options in a file that `asyncrt tune` wrote."),
]
Requests = Annotated[int, typer.Option(min=1, help="Requests there at the same time; one more is told to come later.")]
Body = Annotated[int, typer.Option(min=1, max=1 << 20, help="MiB of a request.")]
Timeout = Annotated[
    float, typer.Option(min=1e-3, callback=o.finite, help="Seconds that a request may take; it may say less itself.")
]
Sender = Annotated[
    float,
    typer.Option(min=1e-3, callback=o.finite, help="Seconds in which a request's header has to come, and its body."),
]
Drain = Annotated[
    float, typer.Option(min=0, callback=o.finite, help="Seconds that running requests have once the server is to end.")
]
Certificate = Annotated[
    Path | None, typer.Option("--tls-cert", exists=True, dir_okay=False, help="A certificate, for TLS; PEM.")
]
Key = Annotated[Path | None, typer.Option("--tls-key", exists=True, dir_okay=False, help="Its key; PEM.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help=f"A key that callers carry; else {_KEY} of the environment."),
]
Log = Annotated[bool, typer.Option("--access-log", help="Write a line of JSON for each request, to stdout.")]


@reporting
def serve(
    source: Source,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    grpc_port: GrpcPort = None,
    name: Name = None,
    device: o.Device = None,
    streams: o.Streams = None,
    batched: Batching = False,
    config: Config = None,
    max_requests: Requests = 1024,
    max_body: Body = 256,
    timeout: Timeout = 60.0,
    sender_timeout: Sender = 30.0,
    drain: Drain = 30.0,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    api_key_file: KeyFile = None,
    access_log: Log = False,
    precision: o.Precision = "fp32",
) -> None:
    """Serve models: the Open Inference Protocol over HTTP and gRPC, ready when all are loaded and warm.

    It listens on this machine alone unless --host says otherwise. Ctrl-C, or SIGTERM, lets running requests finish; a
    second one does not wait.

    \b
    Examples:
      asyncrt serve bert.onnx --batched
      asyncrt serve bert.onnx --config batching.json
      asyncrt serve models/ --host 0.0.0.0 --api-key-file key.txt
    """
    try:
        from asyncrt.serve import process
        from asyncrt.serve.repository import Repository
        from asyncrt.serve.settings import Limits, ModelSettings
        from asyncrt.serve.watch.access_log import AccessLog
    except ImportError as error:
        raise AsyncrtError(
            f"the server needs a package that is not installed: {error.name}", hint="pip install 'asyncrt[serve]'"
        ) from error
    doors = _doors(host, port, grpc_port, (tls_cert, tls_key), api_key_file)
    limits = Limits(
        requests=max_requests, body_bytes=max_body * _MIB, pending_bytes=max(4 * max_body * _MIB, 1 << 30),
        request_timeout_s=timeout, body_timeout_s=sender_timeout, header_timeout_s=sender_timeout, drain_s=drain,
    )  # fmt: skip
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of each message that is no HTTP
    options = RuntimeOptions(precision=precision, collect_when_idle=True)
    runtime = Runtime(device, streams=streams, options=options)
    batching = BatchOptions.read(config) if config is not None else BatchOptions() if batched else None
    default = ModelSettings(batching=batching)
    log = AccessLog(sys.stdout if access_log else None)
    work = process.serve(runtime, Repository(source, name), doors, limits, default, log, note)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(work)


def _doors(
    host: str, port: int, grpc_port: int | None, tls: tuple[Path | None, Path | None], key: Path | None
) -> Doors:
    from asyncrt.serve.options import Address, Doors, Tls

    certificate, private = tls
    if (certificate is None) != (private is None):
        raise wrong("--tls-cert", "expected --tls-cert and --tls-key together")
    said = os.environ.get(_KEY) if key is None else key.read_text(encoding="utf-8").strip()
    if said is not None and not said:
        raise wrong("--api-key-file", "expected a key, and there is none in it")
    return Doors(
        http=Address(host, port),
        grpc=_grpc(host, grpc_port),
        tls=None if certificate is None or private is None else Tls(certificate, private),
        key=said,
    )


def _grpc(host: str, port: int | None) -> Address | None:
    """Return where gRPC is served: where it is asked for, or else where its packages are installed."""
    from asyncrt.serve.options import Address

    if port is None:
        try:
            import asyncrt.serve.grpc.server  # noqa: F401
        except ImportError as error:
            note(f"HTTP alone: gRPC needs a package that is not installed ({error.name}); pip install 'asyncrt[grpc]'")
            return None
        return Address(host, _GRPC_PORT)
    return None if port < 0 else Address(host, port)


def _loop_factory() -> Any:
    """Return what makes the event loop: uvloop's, which is faster, if it is there."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
