"""What every kernel of a convolution of 8-bit integers is given: its sizes, and its buffers."""

from __future__ import annotations

from typing import NamedTuple

from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.epilogue import SOME, Epilogue, bind, store_some
from asyncrt.kernels.codegen.vectors import ALL_VECTORS
from asyncrt.kernels.impl import Ref
from asyncrt.kernels.patterns.window import Window
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, INT8, INT32, UINT8, DataType

from .product import Scales
from .quantize import bounds, divided, whole16


class IntegerConv(NamedTuple):
    """A convolution at one set of shapes; the data is input 0.

    Attributes:
        made: dtype of what the sums become: int32, or float32 or 8 bits where there are scales.
        weights: The node's input that the filters are.
        constant: They are a constant of the model.
        inputs, outputs: Channels per group.
        window: Over three spatial axes.
        zeros: Where the zero points of the data and of the filters are; None for those that are 0.
        per_channel: There is a zero point for each filter.
        neutral: The filters' zero point is known to be 0, or 128 if they are unsigned.
        bias: What is added to the sums, in int32.
    """

    x: DataType
    w: DataType
    made: DataType
    weights: int
    constant: bool
    batch: int
    group: int
    inputs: int
    outputs: int
    window: Window
    zeros: tuple[Ref | None, Ref | None]
    per_channel: bool = False
    neutral: bool = False
    scales: Scales | None = None
    bias: Ref | None = None


class IntegerConvForm(NamedTuple):
    """What the source of a kernel depends on."""

    x: DataType
    w: DataType
    made: DataType
    result: DataType
    x_zero: bool
    w_zero: bool
    sums: bool
    scaled: bool
    rounded: bool
    bias: bool
    last: epilogue.EpilogueForm

    def buffers(self, x: DataType, w: DataType) -> tuple[tuple[str, DataType, str], ...]:
        """Return the kernel's buffers where data and filters are read as these types."""
        return (
            ("x", x, "r"),
            ("f", w, "r"),
            ("y", self.result, "w"),
            *((("zx", self.x, "r"),) if self.x_zero else ()),
            *((("zw", self.w, "r"),) if self.w_zero else ()),
            *((("sx", FLOAT32, "r"), ("sf", FLOAT32, "r")) if self.scaled else ()),
            *((("sy", FLOAT32, "r"), ("zy", self.made, "r")) if self.rounded else ()),
            *((("bias", INT32, "r"),) if self.bias else ()),
            *self.last.buffers,
        )

    def factor(self, traits: DeviceTraits) -> str:
        """What a sum of filter ``oc`` is multiplied by."""
        scale = "sx[0] * sf[oc * sf_step]"
        return divided(scale, "sy[0]", traits) if self.rounded else f"({scale})"

    @property
    def low(self) -> str:
        """The zero point of the data, as unsigned bytes."""
        return ("zx[0]" if self.x_zero else "0") + (" + 128" if self.x is INT8 else "")

    @property
    def high(self) -> str:
        """The zero point of filter ``oc``, as signed bytes."""
        return ("zw[oc * zw_step]" if self.w_zero else "0") + (" - 128" if self.w is UINT8 else "")

    def sum16(self, s: str, weights_sum: str, data_sum: str) -> str:
        """Return 16 sums, as ``uint16``, of *s*, what unsigned data and signed filters give, less their zero points.

        Args:
            weights_sum: Of the filter.
            data_sum: Of what each position sees; it is read only if `sums`.
        """
        text = f"as_uint16({s}) - (uint)low * (uint)({weights_sum})"
        if self.sums:
            text += f" - (uint)({self.high}) * (as_uint16({data_sum}) - (uint)K * (uint)low)"
        return text + (" + (uint)bias[oc]" if self.bias else "")

    def made16(self, sums: str) -> str:
        """Return what becomes of 16 sums, ``uint16``, before the epilogue; ``factor`` is that of the filter."""
        value = f"as_int16({sums})"
        if self.scaled:
            value = f"convert_float16({value}) * factor"
        if self.rounded:
            least, greatest = bounds(self.made)
            value = whole16(f"clamp(rint({value}) + (float)zy[0], {least}, {greatest})")
        return value


    @property
    def helpers(self) -> str:
        """What `stored16` calls."""
        if not self.last.vector:
            return self.last.helpers
        some = SOME if self.result is FLOAT32 else SOME + store_some(self.result)
        return some + self.last.helpers

    def stored16(self, joined: bool, value: str, q: str, left: str) -> str:
        """Return the statement that stores 16 results of ``row``, of positions from *q* on, or *left* if that is less.

        Args:
            joined: The ``P`` positions are one row of the result, where the operands' rows begin as `rows` says; else they
                are rows of ``OW``.
            value: Of `made`.
        """
        last, made, result = self.last, self.made, self.result
        if joined and last.vector:
            at = f"y + row * P + {q}", q, value
            whole, some = last.stored_vector(*at, made, result), last.stored_some(*at, left, made, result)
            return f"if ({left} >= 16) {whole} else if ({left} > 0) {some}"
        one = last.element(made, "y", "row * P + q", "q", "o[j]", result)
        if not joined:
            one = f"""const int line_of_q = row * (P / OW) + q / OW, ow = q % OW;
      {last.rows("line_of_q")} {last.element(made, "y", "line_of_q * OW + ow", "ow", "o[j]", result)}"""
        return f"""{{ {ALL_VECTORS[made].removesuffix("16")} o[16]; vstore16({value}, 0, o);
    for (int j = 0; j < min(16, {left}); j++) {{ const int q = {q} + j; {one} }} }}"""

    def rows(self, joined: bool) -> str:
        """Write the statements after which the operands' row ``row`` begins, where its positions are one."""
        return self.last.rows("row") if joined else ""


class BoundIntegerConv(NamedTuple):
    """A convolution's part of a launch.

    Attributes:
        form: What its kernel's source depends on.
        refs: The buffers behind the result.
        steps: Elements from one filter's zero point, and scale, to the next one's: 0 or 1.
        ints: Sizes of the epilogue.
    """

    form: IntegerConvForm
    refs: tuple[Ref, ...]
    steps: tuple[int, int]
    ints: tuple[int, ...]


def bind_conv(conv: IntegerConv, shape: tuple[int, ...], after: Epilogue | None, *, integers: bool) -> BoundIntegerConv:
    """Return *conv* with what becomes of its elements.

    Args:
        shape: Of its result, as the kernel walks it: rows of columns.
        integers: Whether the kernel stores vectors also where operands of the epilogue are integers.
    """
    last = bind(after, shape, integers=integers, converts=True)
    scales, result = conv.scales, conv.made if after is None or after.result is None else after.result
    form = IntegerConvForm(
        conv.x, conv.w, conv.made, result, conv.zeros[0] is not None, conv.zeros[1] is not None, not conv.neutral,
        scales is not None, scales is not None and scales.result is not None, conv.bias is not None, last.form,
    )  # fmt: skip
    refs = tuple(zero for zero in conv.zeros if zero is not None)
    if scales is not None:
        refs += (scales.left, scales.right, *(scales.result or ()))
    refs += () if conv.bias is None else (conv.bias,)
    steps = int(conv.per_channel), int(scales is not None and scales.per_column)
    return BoundIntegerConv(form, (*refs, *last.refs), steps, last.ints)
