"""What may a request to load a model say?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from asyncrt.serve.errors import BadRequest


def settings_given(parameters: Any) -> dict[str, Any] | None:
    """Return the settings that a request to load a model brings, in its parameter `config`: JSON; None if none."""
    if parameters is None:
        return None
    if not isinstance(parameters, Mapping):
        raise BadRequest("parameters must be an object")
    unknown = [name for name in parameters if name != "config"]
    if unknown:
        raise BadRequest("a model is loaded from the repository; the only parameter is config, its settings as JSON")
    config = parameters.get("config")
    if config is None:
        return None
    if not isinstance(config, str):
        raise BadRequest("config must be settings as JSON, in a text")
    try:
        found = json.loads(config)
    except (ValueError, RecursionError) as error:
        raise BadRequest("config is not JSON") from error
    if not isinstance(found, dict):
        raise BadRequest("config must be an object")
    return found
