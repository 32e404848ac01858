"""`/openapi.json`: what the paths take and give, for programs that make clients and tests of it."""

from __future__ import annotations

from typing import Any

from asyncrt.serve.protocol.datatypes import DATATYPES
from asyncrt.version import __version__

_ERRORS = {
    "400": "what was sent is wrong, and why",
    "404": "there is no such model, version, sequence or path",
    "413": "more bytes than a request may have",
    "415": "a content-encoding other than gzip and deflate",
    "429": "too many requests; retry-after says when to come again",
    "503": "the server starts, ends or cannot; retry-after says when to come again",
    "504": "no answer in time",
}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return {**found, "required": list(required)} if required else found


_TEXT, _WHOLE, _ANY = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "object"}
_SHAPE = _list(_WHOLE)
_DATA = {"type": "array", "items": {}, "description": "numbers or booleans, nested as the shape is or flat"}

_SCHEMAS: dict[str, Any] = {
    "Error": _object(("error",), error=_TEXT),
    "ErrorOfOpenAI": _object(
        ("error",), error=_object(("message", "type"), message=_TEXT, type=_TEXT, code={"type": ["string", "null"]})
    ),
    "Embeddings": _object(
        ("model", "input"), model=_TEXT, encoding_format={"type": "string", "enum": ["float", "base64"]},
        input={"description": "a text, or texts, or tokens of one, or of several"},
    ),
    "Parameters": _object(
        sequence_id={"oneOf": [_WHOLE, _TEXT]}, sequence_start={"type": "boolean"}, sequence_end={"type": "boolean"},
        priority=_WHOLE, timeout={**_WHOLE, "description": "microseconds"}, binary_data_output={"type": "boolean"},
    ),
    "Input": _object(
        ("name", "shape", "datatype"), name=_TEXT, shape=_SHAPE, datatype={"type": "string", "enum": list(DATATYPES)},
        data=_DATA, parameters=_object(binary_data_size=_WHOLE),
    ),
    "WantedOutput": _object(("name",), name=_TEXT, parameters=_object(binary_data={"type": "boolean"})),
    "InferRequest": _object(
        ("inputs",), id=_TEXT, inputs=_list(_ref("Input")), outputs=_list(_ref("WantedOutput")),
        parameters=_ref("Parameters"),
    ),
    "Output": _object(
        ("name", "shape", "datatype"), name=_TEXT, shape=_SHAPE, datatype=_TEXT, data=_DATA,
        parameters=_object(binary_data_size=_WHOLE),
    ),
    "InferResponse": _object(
        ("model_name", "outputs"), id=_TEXT, model_name=_TEXT, model_version=_TEXT, outputs=_list(_ref("Output")),
    ),
    "Stream": _object(("requests",), requests=_list(_ref("InferRequest"))),
    "Tensor": _object(("name", "datatype", "shape"), name=_TEXT, datatype=_TEXT, shape=_list({"type": "integer"})),
    "Server": _object(("name", "version", "extensions"), name=_TEXT, version=_TEXT, extensions=_list(_TEXT)),
    "Model": _object(
        ("name", "versions", "platform", "inputs", "outputs"), name=_TEXT, versions=_list(_TEXT), platform=_TEXT,
        inputs=_list(_ref("Tensor")), outputs=_list(_ref("Tensor")),
    ),
    "Statistics": _object(("model_stats",), model_stats=_list(_ANY)),
    "Index": _list(
        _object(("name", "version", "state", "reason"), name=_TEXT, version=_TEXT, state=_TEXT, reason=_TEXT)
    ),
    "Load": _object(parameters=_object(config={"type": "string", "description": "settings of the model, as JSON"})),
}  # fmt: skip


def _operation(
    summary: str, *, body: str = "", gives: str = "", kind: str = "application/json", wrong: str = "Error"
) -> dict[str, Any]:
    given: dict[str, Any] = {"description": "done"}
    if gives or kind != "application/json":
        given["content"] = {kind: {"schema": _ref(gives) if gives else _TEXT}}
    error = {"application/json": {"schema": _ref(wrong)}}
    refused = {code: {"description": why, "content": error} for code, why in _ERRORS.items()}
    found: dict[str, Any] = {"summary": summary, "responses": {"200": given, **refused}}
    if body:
        required = body in ("InferRequest", "Stream", "Embeddings")
        found["requestBody"] = {"required": required, "content": {"application/json": {"schema": _ref(body)}}}
    return found


def _paths() -> dict[str, dict[str, Any]]:
    paths: dict[str, dict[str, Any]] = {
        "/v2": {"get": _operation("What the server is", gives="Server")},
        "/v2/health/live": {"get": _operation("Whether the server lives")},
        "/v2/health/ready": {"get": _operation("Whether it takes requests")},
        "/v2/models/stats": {"get": _operation("What all models have done", gives="Statistics")},
        "/v2/repository/index": {"post": _operation("Which models there are", gives="Index")},
        "/v2/repository/models/{model}/load": {"post": _operation("Load a model, or what is new of it", body="Load")},
        "/v2/repository/models/{model}/unload": {"post": _operation("Let a model go")},
        "/metrics": {"get": _operation("Metrics, for Prometheus", kind="text/plain")},
    }
    for version in ("", "/versions/{version}"):
        model = f"/v2/models/{{model}}{version}"
        paths[model] = {"get": _operation("What a model takes and gives", gives="Model")}
        paths[f"{model}/ready"] = {"get": _operation("Whether a model is ready")}
        paths[f"{model}/stats"] = {"get": _operation("What a model has done", gives="Statistics")}
        paths[f"{model}/infer"] = {"post": _operation("Run a model", body="InferRequest", gives="InferResponse")}
        stream = _operation("Run it several times, and send each answer", body="Stream", kind="text/event-stream")
        paths[f"{model}/infer_stream"] = {"post": stream}
    embeddings = _operation("Vectors of texts, as the OpenAI API has it", body="Embeddings", wrong="ErrorOfOpenAI")
    paths["/v1/embeddings"] = {"post": embeddings}
    for path, operations in paths.items():
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        for operation in operations.values():
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names
            ]
    return paths


def document() -> dict[str, Any]:
    """Return the description of all paths."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "asyncrt serve", "version": __version__},
        "paths": _paths(),
        "components": {"schemas": _SCHEMAS},
    }
