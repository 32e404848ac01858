"""With `precision="bf16"`: round the weights of products and convolutions to bfloat16.

Weights are the right-hand matrix of a product and the filter of a convolution. Rounding them here, once, makes
bf16 a property of the model: every kernel, for every shape and on every device, multiplies with the same numbers.
"""

from __future__ import annotations

from asyncrt.graph.ir import Graph
from asyncrt.kernels.matmul.bf16_weights import rounded

from .exchange_weights import exchange_weights

_FACTORS = {"MatMul": (1,), "Gemm": (1,), "Conv": (1,), "ConvTranspose": (1,)}


def round_weights(graph: Graph) -> None:
    """Give products and convolutions weights that bfloat16 has. Changes *graph*, and those inside its nodes."""
    exchange_weights(graph, _FACTORS, rounded, "bf16")
