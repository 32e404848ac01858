"""The published messages of the protocol, which come with its client, and have no types."""

from __future__ import annotations

from typing import Any, TypeAlias

from tritonclient.grpc import model_config_pb2, service_pb2

Message: TypeAlias = Any
pb: Any = service_pb2
config_pb: Any = model_config_pb2
