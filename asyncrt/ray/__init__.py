"""Models as deployments of Ray Serve: the server of `asyncrt serve` in any number of processes, on any machines.

    from ray import serve
    import asyncrt.ray

    serve.run(asyncrt.ray.deployment("bert.onnx", num_replicas=2, batched=True))

Ray starts and watches replicas, and chooses one for each request; within a replica all is asyncrt's: who may come in,
batches, deadlines, sequences. `replica.py` is one process, `calls.py` how Ray calls gRPC's methods, `held.py` which of
many models a replica keeps, and `client.py` how Python asks without HTTP.
"""

from asyncrt.errors import AsyncrtError

try:
    import ray.serve as _serve  # noqa: F401  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise AsyncrtError(
        f"asyncrt.ray needs a package that is not installed: {error.name}", hint="pip install 'asyncrt[ray]'"
    ) from error

from .client import Client, ReplicaLost
from .deploy import deployment

__all__ = ["Client", "ReplicaLost", "deployment"]
