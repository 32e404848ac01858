"""Each test here runs twice: on ONNX Runtime, which says what is right, and on asyncrt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from asyncrt.compat.shared import configure, shared_runtime


@pytest.fixture(scope="package")
def on_the_host() -> Iterator[None]:
    """Sessions run on the host's device, whose runtime is closed in the end."""
    configure("host", None)
    runtime = shared_runtime()
    yield
    runtime.close()
    configure(None, None)


@pytest.fixture
def ours(on_the_host: None) -> Any:
    """The package of asyncrt."""
    import asyncrt.compat.onnxruntime

    return asyncrt.compat.onnxruntime


@pytest.fixture(params=["onnxruntime", "asyncrt"])
def ort(request: pytest.FixtureRequest) -> Any:
    """A package with ONNX Runtime's API."""
    if request.param == "asyncrt":
        return request.getfixturevalue("ours")
    installed = pytest.importorskip("onnxruntime")
    installed.set_default_logger_severity(4)
    return installed
