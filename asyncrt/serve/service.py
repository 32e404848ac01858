"""What the server does, whichever door a request comes through.

A door lets a request in (`admission`), parses it, asks `infer()` here, and formats the answer; each of them is a stage
that is timed. What the protocol says beside inference (metadata, statistics, the repository) is answered here as plain
values.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from asyncrt.runtime.cooperative import off_loop
from asyncrt.runtime.runtime import Runtime
from asyncrt.version import __version__

from .admission import Admission
from .errors import Unavailable
from .models import Models
from .protocol.messages import InferRequest, InferResponse, select
from .repository import Repository
from .served_model import ServedModel
from .settings import Limits, ModelSettings
from .watch.access_log import AccessLog
from .watch.counts import Clock, Durations
from .watch.spans import request_span

NAME = "asyncrt"
EXTENSIONS = ("binary_tensor_data", "statistics", "model_repository", "sequence", "schedule_policy", "parameters")
PLATFORM = "onnx_asyncrt"


class Service:
    """A server without its doors."""

    def __init__(
        self, runtime: Runtime, repository: Repository, limits: Limits, default: ModelSettings, log: AccessLog
    ) -> None:
        self.runtime, self.limits, self.log = runtime, limits, log
        self.models = Models(runtime, repository, default)
        self.admission = Admission(limits)
        self.draining = asyncio.Event()

    async def start(self) -> None:
        """Load all models; requests are let in from then on."""
        await self.models.load_all()
        if not self.draining.is_set():
            self.admission.open()

    async def drain(self) -> bool:
        """Let nobody in any more; returns whether all that are in have their answers, as soon as they have."""
        self.admission.close("the server is ending")
        self.draining.set()
        return await self.admission.drained(self.limits.drain_s)

    @property
    def is_ready(self) -> bool:
        """Whether requests are let in, and there is a device for them."""
        return self.admission.is_open and not self.runtime.lost

    def check_ready(self) -> None:
        """Raise `Unavailable` unless it is ready."""
        if not self.is_ready:
            raise Unavailable("the server is not ready")

    # Inference.

    @contextlib.contextmanager
    def using(self, name: str, version: str, door: str, clock: Clock, headers: Any = None) -> Iterator[ServedModel]:
        """Give the model of a request while this lasts, and note how the request ended.

        Args:
            door: The way it came, for the log.
            headers: May say which trace it belongs to.
        """
        with self.models.use(name, version) as served, request_span(served.name, served.version, headers) as span:
            try:
                yield served
            except BaseException as error:
                took = clock.failed(served.counts, error)
                span.failed(error)
                self.log.request(served.name, served.version, door, clock, took, error)
                raise
            took = clock.answered(served.counts)
            self.log.request(served.name, served.version, door, clock, took, None)

    async def infer(self, served: ServedModel, request: InferRequest, clock: Clock) -> InferResponse:
        """Run a request on a model that is in use."""
        clock.batch = next((a.shape[0] for a in request.inputs.values() if a.ndim), 1)
        with clock.stage("run"):
            outputs = await served.infer(request, self.limits.request_timeout_s)
        return InferResponse(served.name, str(served.version), request.id, select(outputs, request.outputs))

    async def timed(self, clock: Clock, stage: str, nbytes: int, work: Callable[[], Any]) -> Any:
        """Do a stage of a request; what is large is done off the event loop."""
        with clock.stage(stage):
            return await off_loop(nbytes, work)

    # What the protocol tells.

    def server_metadata(self) -> dict[str, Any]:
        """Return what the server is."""
        return {"name": NAME, "version": __version__, "extensions": list(EXTENSIONS)}

    def model_metadata(self, name: str, version: str) -> dict[str, Any]:
        """Return what a model takes and gives."""
        served = self.models.find(name, version)
        return {
            "name": name,
            "versions": self.models.versions(name),
            "platform": PLATFORM,
            "inputs": [attrs.asdict(x) for x in served.inputs],
            "outputs": [attrs.asdict(x) for x in served.outputs],
        }

    def model_config(self, name: str, version: str) -> dict[str, Any]:
        """Return how a model is served."""
        served = self.models.find(name, version)
        batching = served.settings.batching
        return {
            "name": name,
            "platform": PLATFORM,
            "max_batch_size": 0 if batching is None else batching.max_batch,
            "input": [_configured(attrs.asdict(x)) for x in served.inputs],
            "output": [_configured(attrs.asdict(x)) for x in served.outputs],
        }

    def status(self) -> dict[str, Any]:
        """Return what goes on now."""
        return {"ready": self.is_ready, "inside": self.admission.inside, "refused": self.admission.refused}

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """Return what models have done; without a name, all."""
        if name and not version:
            chosen = [s for s in self.models if s.name == self.models.find(name).name]
        else:
            chosen = [self.models.find(name, version)] if name else list(self.models)
        return [_statistics(served) for served in chosen]


def _configured(tensor: dict[str, Any]) -> dict[str, Any]:
    datatype = "STRING" if tensor["datatype"] == "BYTES" else tensor["datatype"]
    return {"name": tensor["name"], "data_type": f"TYPE_{datatype or 'INVALID'}", "dims": tensor["shape"]}


def _statistics(served: ServedModel) -> dict[str, Any]:
    counts, run = served.counts, served.counts.stages["run"]

    def told(durations: Durations) -> dict[str, int]:
        return {"count": durations.count, "ns": durations.ns}

    return {
        "name": served.name,
        "version": str(served.version),
        "last_inference": counts.last_ms,
        "inference_count": counts.rows,
        "execution_count": served.executions,
        "inference_stats": {
            "success": told(counts.stages["total"]),
            "fail": told(counts.failed),
            # Of requests that wait for a device, and not for a batch, waiting is part of compute_infer.
            "queue": told(Durations(counts.stages["total"].count, counts.queue.ns)),
            "compute_input": told(counts.stages["decode"]),
            "compute_infer": told(Durations(run.count, max(0, run.ns - counts.queue.ns))),
            "compute_output": told(counts.stages["encode"]),
            "cache_hit": told(Durations()),
            "cache_miss": told(Durations()),
        },
        "batch_stats": [],
    }
