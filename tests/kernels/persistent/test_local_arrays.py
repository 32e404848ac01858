"""Arrays in local memory become places in a space that is shared, and nothing else of a text changes."""

from __future__ import annotations

import pytest

from asyncrt.kernels.persistent.local_arrays import placed


def test_arrays_lie_one_behind_the_other() -> None:
    """Each begins at a multiple of 16 bytes; those of several axes are used as before."""
    text = "__local float a[3][4 + 1] __attribute__((aligned(16))), b[2 * 5];\n  __local int c[3];"

    found = placed(text, "space")

    assert found is not None
    assert found.nbytes == 64 + 48 + 16
    assert found.text == (
        "__local float (* const a)[4 + 1] = (__local float (*)[4 + 1])(space + 0); "
        "__local float * const b = (__local float *)(space + 64);\n"
        "  __local int * const c = (__local int *)(space + 112);"
    )


@pytest.mark.parametrize("text", ["__local float* q = space;", "const __local ushort* at = s + 1;", "float c[4];"])
def test_pointers_and_private_arrays_stay(text: str) -> None:
    """They take no local memory."""
    assert placed(text, "space") == (text, 0)


@pytest.mark.parametrize("text", ["__local float4 a[3];", "__local float a[SIZE];", "__local float a[3 / 2];"])
def test_what_is_not_known_is_not_placed(text: str) -> None:
    """A kernel with such an array stays a kernel."""
    assert placed(text, "space") is None
