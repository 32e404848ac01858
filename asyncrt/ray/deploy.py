"""A model, or a repository of models, as an application of Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray.serve  # pyright: ignore[reportMissingImports]

from asyncrt.arguments import whole
from asyncrt.errors import ArgumentError
from asyncrt.options import RuntimeOptions
from asyncrt.serve.settings import Limits, ModelSettings

from .held import multiplexed
from .replica import App, Replica, Wanted

#: What Ray's proxies have to be told for gRPC.
GRPC_SERVICER = "asyncrt.ray.calls.add_servicer"


def deployment(
    source: str | Path, *, name: str | None = None, num_replicas: int | str = 1, num_cpus: float = 1,
    num_gpus: float = 0, resources: Mapping[str, float] | None = None, devices: str | Sequence[str] = (),
    streams: int | None = None, options: RuntimeOptions | None = None, batched: bool = False,
    settings: Mapping[str, Mapping[str, Any]] | None = None, max_models: int | None = None, key: str | None = None,
    max_ongoing_requests: int = 256, limits: Limits | None = None, **of_ray: Any,
) -> Any:  # fmt: skip
    """Return an application for `ray.serve.run()`: what `asyncrt serve` serves, in replicas.

    Callers reach it through Ray's proxies: over HTTP by the same paths, and over gRPC where `grpc_options` of
    `ray.serve.start()` have `asyncrt.ray.deploy.GRPC_SERVICER`. Python may use `asyncrt.ray.Client`.

    Args:
        source: An ONNX file or a repository, at the same path on every machine of the cluster.
        name: What the model of a single file is called; None goes by the file.
        num_replicas: Processes; or "auto".
        num_cpus: Of Ray's, that one replica takes.
        num_gpus: Likewise.
        resources: Likewise, of the kinds that the cluster's machines were started with, such as `{"opencl": 1}`.
        devices: As `Runtime` takes them; replicas of one machine take them in turn.
        streams: As `Runtime` takes it.
        options: Likewise.
        batched: Put requests together, of models whose settings say nothing of batching.
        settings: Of models by name, instead of their files'. They are the deployment's `user_config`: deployed anew
            with other settings, replicas load the models again, and no request fails meanwhile.
        max_models: Load models when they are asked for, and keep so many; None loads all before the first request.
        key: What callers have to carry; None asks for nothing.
        max_ongoing_requests: That Ray sends to one replica at the same time. Batches are made of these, so it is many.
        limits: Of one replica.
        of_ray: Whatever else `ray.serve.deployment()` takes.

    Raises:
        ArgumentError: An argument is not what it may be.
    """
    if max_models is not None:
        whole("max_models", max_models, 1)
    if isinstance(num_replicas, str) and num_replicas != "auto":
        raise ArgumentError(f'num_replicas must be a number or "auto", got {num_replicas!r}')
    for given in (settings or {}).values():
        ModelSettings.of(given, "settings")  # to find here what each replica would find
    taken = (devices,) if isinstance(devices, str) else tuple(devices)
    default = ModelSettings.of({"batching": batched}, "batched")
    wanted = Wanted(
        source=Path(source).absolute(), name=name, devices=taken, streams=streams, options=options or RuntimeOptions(),
        default=default, limits=limits or Limits(), key=key,
    )  # fmt: skip
    kind = _with_grpc(Replica if max_models is None else multiplexed(max_models))
    actor = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": dict(resources or {})}
    made = ray.serve.deployment(
        ray.serve.ingress(App())(kind), name=of_ray.pop("deployment_name", "asyncrt"), num_replicas=num_replicas,
        ray_actor_options=actor, max_ongoing_requests=max_ongoing_requests, user_config=dict(settings or {}), **of_ray,
    )  # fmt: skip
    return made.bind(wanted)


def _with_grpc(kind: type[Replica]) -> type[Replica]:
    try:
        from .calls import with_grpc
    except ImportError:  # without the extra `grpc` there is HTTP, and `Client`
        return kind
    return with_grpc(kind)
