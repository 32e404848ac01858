"""What is sent? A right message drawn by a seed, and then made wrong: its values, its bytes, its framing, its pace.

A case is data: the same seed makes the same case, whatever server it goes to.
"""

from __future__ import annotations

import gzip
import json
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import attrs
from tritonclient.grpc import service_pb2 as pb

DATATYPES = ["BOOL", "UINT8", "INT8", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16", "BYTES", "fp32", "", "X" * 99]
MODELS = ["double"] * 12 + ["same", "sum", "words", "nobody", "..", "%00", "a" * 300]
LENGTH = "inference-header-content-length"

#: What takes the place of a value of JSON.
ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 1e308, 0.5, "", "0", "x", "\x00", "\ud800", "é" * 50, [],
    {}, [[]], [[[[1]]]], {"": {}}, [None], ["1"], [1e400], {"name": "x"}, [0] * 300, "9" * 400,
]  # fmt: skip


@attrs.frozen
class Case:
    """What one caller does.

    Attributes:
        to: The door: "http", "grpc", or "grpc bytes", which is a connection of gRPC without its protocol.
        parts: What is sent, with a pause between two.
        then: "wait" for the answer, say that no more comes ("half"), or "go".
        method: The call, of gRPC.
    """

    to: str
    parts: list[bytes]
    then: str = "wait"
    method: str = ""


def case(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    return rng.choices([http, grpc_call, grpc_bytes], [6, 3, 1])[0](rng)


# HTTP.


def http(rng: random.Random) -> Case:
    """Return a request of HTTP, right or wrong."""
    method, path, headers, body = rng.choices(_ASKED, _WEIGHTS)[0](rng)
    if rng.random() < 0.2:
        body, headers = _encoded(rng, body, headers)
    whole = _framed(rng, method, path, headers, body)
    if rng.random() < 0.1:
        whole += rng.choice([whole, b"\r\n\r\n", b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n", rng.randbytes(20)])
    if rng.random() < 0.35:
        whole = spoiled(rng, whole)
    return Case("http", _parts(rng, whole), rng.choices(["wait", "half", "go"], [8, 1, 1])[0])


Asked = tuple[str, str, list[tuple[str, str]], bytes]


def _infer(rng: random.Random) -> Asked:
    value, raw = _request(rng)
    headers: list[tuple[str, str]] = []
    text = _json(rng, value)
    if raw or rng.random() < 0.1:
        length = rng.choice([len(text)] * 9 + [0, len(text) + 1, -1, 10**18, "x"])
        headers.append((LENGTH, str(length)))
    version = rng.choice([""] * 8 + ["/versions/1", "/versions/2", "/versions/x", "/versions/" + "9" * 30])
    return "POST", f"/v2/models/{rng.choice(MODELS)}{version}/infer", headers, text + raw


def _stream(rng: random.Random) -> Asked:
    steps = [_request(rng)[0] for _ in range(rng.randrange(4))]
    return "POST", f"/v2/models/{rng.choice(MODELS)}/infer_stream", [], _json(rng, {"requests": steps})


def _embeddings(rng: random.Random) -> Asked:
    texts = rng.choice(
        ["red fish", ["red", "green fish"], [1, 2], [[1], [2, 3]], [], "", [""], [[]], [10**9], ["x"] * 99]
    )
    value = {"model": rng.choice(["words", "words", "double", ""]), "input": texts}
    value |= rng.choice([{}, {}, {"encoding_format": "base64"}, {"encoding_format": 1}, {"dimensions": 3}])
    return "POST", "/v1/embeddings", [], _json(rng, value)


def _repository(rng: random.Random) -> Asked:
    parameters = rng.choice([{}, {"config": "{}"}, {"config": '{"batching": 1}'}, {"config": "["}, {"config": 7}, []])
    name = rng.choice(["spare", "spare", "nobody", "..", "%2e%2e%2fdouble"])
    what = rng.choice(["index", f"models/{name}/load", f"models/{name}/unload"])
    return (
        "POST",
        f"/v2/repository/{what}",
        [],
        _json(rng, {"parameters": parameters, "ready": rng.choice([True, 1, "x"])}),
    )


def _look(rng: random.Random) -> Asked:
    model = rng.choice(MODELS)
    paths = [
        "/", "/metrics", "/status", "/openapi.json", "/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v1/models",
        f"/v2/models/{model}", f"/v2/models/{model}/stats", f"/v2/models/{model}/config", f"/v2/models/{model}/ready",
        f"/v2/models/{model}/versions/{rng.choice(['1', 'x', '9' * 40])}", "/v2/models/stats", f"/graph/{model}",
        "*", "//", "/../../etc/passwd", "/%ff%fe", "http://other/v2", "/v2?" + "a=b&" * 50, "/" + "x" * 70_000,
    ]  # fmt: skip
    return rng.choice(["GET"] * 8 + ["HEAD", "PUT", "OPTIONS", "TRACE", "CONNECT", "BREW"]), rng.choice(paths), [], b""


_ASKED: list[Callable[[random.Random], Asked]] = [_infer, _stream, _embeddings, _repository, _look]
_WEIGHTS = [10, 2, 2, 1, 3]


def _request(rng: random.Random) -> tuple[dict[str, Any], bytes]:
    """Return a request as JSON, and the bytes behind it."""
    rows, columns = rng.choice([(1, 2), (1, 2), (3, 2), (0, 2), (2, 0), (1, 1)])
    tensor: dict[str, Any] = {"name": rng.choice(["x"] * 6 + ["f32", "i64", "input_ids", "y", ""])}
    tensor |= {"shape": [rows, columns], "datatype": rng.choice(["FP32"] * 4 + DATATYPES)}
    raw = b""
    if rng.random() < 0.4:
        raw = struct.pack(f"<{rows * columns}f", *[0.5] * (rows * columns))
        tensor["parameters"] = {"binary_data_size": len(raw)}
    else:
        tensor["data"] = [0.5] * (rows * columns)
    value: dict[str, Any] = {"inputs": [tensor] * rng.choice([1] * 9 + [2])}
    if rng.random() < 0.3:
        value["parameters"] = {
            rng.choice(["timeout", "priority", "sequence_id", "sequence_start", "binary_data_output", "other"]):
            rng.choice([1, 7, True, "3", -1, 2**70, None, 10_000_000])
        }  # fmt: skip
    if rng.random() < 0.2:
        value["outputs"] = [
            {"name": rng.choice(["y", "z"]), "parameters": {"binary_data": rng.choice([True, False, 1])}}
        ]
    return value, raw


def _json(rng: random.Random, value: Any) -> bytes:
    """Return a value as JSON, with one of its values exchanged perhaps."""
    if rng.random() < 0.5:
        value = json.loads(json.dumps(value))
        _exchange(rng, value)
    if rng.random() < 0.01:
        depth = rng.choice([100, 2000, 100_000])
        return b"[" * depth + b"]" * depth
    return json.dumps(value).encode()


def _exchange(rng: random.Random, value: Any) -> None:
    """Put something odd in the place of one value, however deep."""
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        inner = value[key]
        if not (isinstance(inner, dict | list) and inner) or rng.random() < 0.3:
            if isinstance(value, dict) and rng.random() < 0.2:
                del value[key]
            else:
                value[key] = rng.choice(ODD)
            return
        value = inner


def _encoded(rng: random.Random, body: bytes, headers: list[tuple[str, str]]) -> tuple[bytes, list[tuple[str, str]]]:
    encoding = rng.choice(["gzip", "deflate", "br", "gzip, gzip", "identity", "\xff"])
    coded = rng.choice([gzip.compress, zlib.compress, bytes, lambda b: gzip.compress(b)[:-3]])(body)
    if rng.random() < 0.02:
        coded = zlib.compress(b" " * (8 << 20))
    return coded, [*headers, ("content-encoding", encoding)]


_ODD_HEADERS = [
    ("content-length", "-1"), ("content-length", "9" * 20), ("content-length", "3"), ("content-length", str(1 << 40)),
    ("transfer-encoding", "chunked"), ("transfer-encoding", "gzip"), ("expect", "100-continue"), ("expect", "x"),
    ("upgrade", "websocket"), ("connection", "upgrade"), ("connection", "keep-alive"), ("traceparent", "00-zz"),
    ("traceparent", "\xff" * 55), ("x", "\xff\x80"), ("x" * 9000, "y"), ("x", "y" * 70_000), ("", ""), ("a b", "c"),
    ("authorization", "Bearer \xff"), ("host", ""), ("accept", "*"), ("range", "bytes=0-"),
]  # fmt: skip


def _framed(rng: random.Random, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    """Return a request's bytes, chunked or not, with a header too many perhaps."""
    chunked = rng.random() < 0.15
    framing = ("transfer-encoding", "chunked") if chunked else ("content-length", str(len(body)))
    pairs = [("host", "x"), ("connection", "close"), *headers, framing]
    if rng.random() < 0.25:
        pairs.insert(rng.randrange(len(pairs) + 1), rng.choice(_ODD_HEADERS))
    version = rng.choice(["HTTP/1.1"] * 20 + ["HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/9.9", ""])
    lines = [f"{method} {path} {version}", *(f"{name}: {value}" for name, value in pairs), "", ""]
    head = "\r\n".join(lines).encode("latin-1", "replace")
    return head + (_chunks(rng, body) if chunked else body)


def _chunks(rng: random.Random, body: bytes) -> bytes:
    size = rng.choice([1, 7, 1000])
    pieces = [body[i : i + size] for i in range(0, min(len(body), 50 * size), size)] + [body[50 * size :]]
    end = rng.choice(
        [b"0\r\n\r\n"] * 6 + [b"", b"0\r\n", b"-1\r\n\r\n", b"fffffffffffffffff\r\n", b"0\r\nx: y\r\n\r\n"]
    )
    return b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces if piece) + end


# gRPC.

_STREAM = "ModelStreamInfer"
_METHODS = [
    _STREAM, "ModelMetadata", "ModelConfig", "ModelStatistics", "ModelReady", "RepositoryIndex", "RepositoryModelLoad",
    "ServerLive", "ServerMetadata", "Nothing",
]  # fmt: skip


def grpc_call(rng: random.Random) -> Case:
    """Return a call of gRPC, of which the message is right or wrong."""
    method = rng.choice(["ModelInfer"] * 6 + _METHODS)
    if method in ("ModelInfer", _STREAM):
        messages = [_message(rng) for _ in range(rng.randrange(1, 4) if method == _STREAM else 1)]
    else:
        messages = [
            pb.ModelMetadataRequest(name=rng.choice(["double", "nobody", "\x00"]), version="1").SerializeToString()
        ]
    spoilt = [spoiled(rng, m) if rng.random() < 0.6 else m for m in messages]
    return Case("grpc", spoilt, rng.choices(["wait", "go"], [9, 1])[0], method)


def _message(rng: random.Random) -> bytes:
    message = pb.ModelInferRequest(model_name=rng.choice([m for m in MODELS if m.isascii()]), id=rng.choice(["", "7"]))
    for _ in range(rng.choice([1] * 8 + [0, 2])):
        shape = rng.choice([[1, 2], [1, 2], [2, 1], [-1, 2], [0], [2**62, 4], []])
        tensor = message.inputs.add(name=rng.choice(["x", "x", "f32"]), datatype=rng.choice(["FP32"] * 4 + DATATYPES))
        tensor.shape.extend(shape)
        if rng.random() < 0.4:
            tensor.contents.fp32_contents.extend([0.5] * rng.choice([2, 2, 1, 300]))
        else:
            message.raw_input_contents.append(rng.choice([bytes(8), bytes(8), bytes(7), b"", rng.randbytes(8)]))
    if rng.random() < 0.3:
        parameter = message.parameters[rng.choice(["timeout", "priority", "sequence_id", "sequence_start", "other"])]
        name, value = rng.choice([("int64_param", 7), ("int64_param", -1), ("string_param", "x"), ("bool_param", True)])
        setattr(parameter, name, value)
    if rng.random() < 0.2:
        message.outputs.add(name=rng.choice(["y", "z"]))
    found: bytes = message.SerializeToString()
    return found


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def grpc_bytes(rng: random.Random) -> Case:
    """Return what is no gRPC, or only begins as it does."""
    frames = b"".join(_frame(rng) for _ in range(rng.randrange(5)))
    start = rng.choice([_PREFACE] * 6 + [_PREFACE[:-4], b"", b"GET / HTTP/1.1\r\n\r\n", rng.randbytes(40)])
    return Case("grpc bytes", _parts(rng, start + frames), rng.choice(["half", "go"]))


def _frame(rng: random.Random) -> bytes:
    payload = rng.randbytes(rng.choice([0, 1, 4, 6, 8, 100]))
    length = rng.choice([len(payload)] * 5 + [0, 2**24 - 1])
    kind, flags = rng.choice([4] * 3 + list(range(12)) + [255]), rng.randrange(256)
    return (
        struct.pack(">I", length)[1:]
        + bytes([kind, flags])
        + struct.pack(">I", rng.choice([0, 1, 3, 2**32 - 1]))
        + payload
    )


# Bytes, whatever they are.


def spoiled(rng: random.Random, given: bytes) -> bytes:
    """Return bytes with some of them flipped, cut out, doubled, or exchanged for others."""
    found = bytearray(given)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(found) + 1)
        upto = min(len(found), at + rng.choice([1, 1, 2, 8, 100]))
        match rng.randrange(5):
            case 0 if at < len(found):
                found[at] ^= 1 << rng.randrange(8)
            case 1:
                del found[at:upto]
            case 2:
                found[at:at] = found[at:upto]
            case 3:
                found[at:upto] = rng.randbytes(rng.choice([0, 1, 4, 16]))
            case _:
                found[at:at] = rng.choice([b"\r\n", b"\x00", b"\xff" * 9, b": ", b"0" * 20, b"\x80" * 12])
    return bytes(found)


def _parts(rng: random.Random, whole: bytes) -> list[bytes]:
    """Return it as it is sent: at once mostly, or in parts, or not to its end."""
    if rng.random() < 0.08:
        whole = whole[: rng.randrange(len(whole) + 1)]
    if rng.random() < 0.85 or len(whole) < 3:
        return [whole]
    cuts = sorted(rng.sample(range(1, len(whole)), min(len(whole) - 1, rng.choice([1, 2, 5]))))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
