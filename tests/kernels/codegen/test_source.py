"""Equal kernels are one object, whoever asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from asyncrt.kernels.codegen.functions import functions
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource
from asyncrt.layout import FLOAT32


def test_two_threads_that_make_the_same_kernel_at_the_same_time_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are compared by their kernels, and kernels are built once: a copy would be another kernel."""
    both = threading.Barrier(2)

    def meets(text: str) -> str:
        both.wait(30)
        return functions(text)

    monkeypatch.setattr("asyncrt.kernels.codegen.source.functions", meets)
    made: list[KernelSource] = []
    make: Callable[[], None] = lambda: made.append(  # noqa: E731
        kernel("twice", (("x", FLOAT32, "rw"),), ("n",), "  x[0] = 1.0f;  // made by two threads")
    )
    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    one, other = made
    assert one is other
