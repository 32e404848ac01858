"""A server of grpc.aio and nothing else, that doubles: what of a server's growth is the library's own?

    python -m tests.stress.wire.bare

grpc.aio loses the memory of a call's operations when its caller cancels it (https://github.com/grpc/grpc/issues/43360).
So the same calls, and the same cancels, go to this one as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from ...environment import with_sources
from ..soak import resident


class _Doubles(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # it has no types
    async def ModelInfer(self, request: Any, context: Any) -> Any:
        x = np.frombuffer(request.raw_input_contents[0], np.float32)
        return pb.ModelInferResponse(model_name="double", raw_output_contents=[(x + x).tobytes()])


@contextlib.contextmanager
def a_bare_server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run it while this lasts; gives its process, and host and port."""
    # Python's allocator as that of the server beside which this one is measured.
    environment = with_sources(PYTHONMALLOC="malloc")
    with subprocess.Popen(
        [sys.executable, "-m", __name__], env=environment, text=True, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            yield process, f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def _serve() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, resident)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Doubles(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
