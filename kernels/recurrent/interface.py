"""What the kernels of recurrent layers have in common: what their sources depend on, and their arguments."""

from __future__ import annotations

from typing import NamedTuple

from asyncrt.devices.base import Registers
from asyncrt.layout import FLOAT32, INT8, INT32, DataType

INTS = ("T", "N", "D", "H", "xs_t", "xs_n", "ys_t", "ys_d", "ys_n", "hs_d", "hs_n")
"""Steps, batch rows, directions and units; then strides in rows: of X by time and batch, of Y and of the states."""


class OptionalInputs(NamedTuple):
    """Whether there are a bias, lengths, a first hidden state, a first cell state and peepholes: inputs 3 to 7."""

    bias: bool
    lengths: bool
    hidden: bool
    cell: bool
    peepholes: bool


class CellForm(NamedTuple):
    """What the source of a kernel depends on.

    Attributes:
        operator: "LSTM", "GRU" or "RNN".
        gates: Blocks of the weights.
        functions: OpenCL C of ``$_f0(x, d)``, ``$_f1(x, d)``, ..., over the kernel's arithmetic type.
        backwards: OpenCL C that says whether direction ``d`` walks back in time.
        optional: Which of the optional inputs there are.
        outputs: How many there are.
        input_forget: The forget gate is 1 minus the input gate.
        linear_before_reset: The reset gate comes after the product.
        rounds: A product's state is rounded to bytes, each batch row's with a scale and a zero point of its own, and
            multiplied by bytes.
        registers: Of the device.
    """

    operator: str
    gates: int
    functions: str
    backwards: str
    optional: OptionalInputs
    outputs: int
    input_forget: bool
    linear_before_reset: bool
    rounds: bool
    registers: Registers

    def buffers(
        self, dtype: DataType, state: DataType, packed: DataType = INT8
    ) -> tuple[tuple[str, DataType, str], ...]:
        """Return the arguments of tensors of *dtype*; the scratch, ``S``, has elements of *state*.

        Where states are rounded, the weights have numbers of *packed*, and scales and zero points behind the rest.
        """
        named = (("bias", dtype), ("lens", INT32), ("H0", dtype), ("C0", dtype), ("P", dtype))
        return (
            ("X", dtype, "r"),
            ("R", packed if self.rounds else dtype, "r"),
            ("S", state, "rw"),
            *((name, type_, "r") for (name, type_), given in zip(named, self.optional, strict=True) if given),
            *((name, dtype, "w") for name in ("Y", "YH", "YC")[: self.outputs]),
            *((name, FLOAT32, "r") for name in ("RS", "RZ") if self.rounds),
        )
