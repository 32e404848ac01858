"""What may a user send first? A line of curl that a model answers, from what it takes."""

from __future__ import annotations

import json
import math
import shlex
from typing import Any
from urllib.parse import quote

from .protocol.messages import TensorInfo
from .served_model import ServedModel

_MOST = 64  # elements; a line with more is none that one reads


def curl_for(served: ServedModel, url: str) -> str | None:
    """Return the line, with ones for every input; None if an input is large, or is not known to be a tensor.

    Args:
        url: Where the server is.
    """
    inputs = [_ones(tensor) for tensor in served.inputs]
    if None in inputs:
        return None
    body = json.dumps({"inputs": inputs})
    return f"curl {url}/v2/models/{quote(served.name, safe='')}/infer -d {shlex.quote(body)}"


def _ones(tensor: TensorInfo) -> dict[str, Any] | None:
    shape = [1 if size < 0 else size for size in tensor.shape]
    if not tensor.datatype or tensor.datatype == "BYTES" or math.prod(shape) > _MOST:
        return None
    one = True if tensor.datatype == "BOOL" else 1
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "data": [one] * math.prod(shape)}
