"""The passes, in their order, and why that order.

Narrow floats are widened before anything is known of them. Layouts come next, because folding needs them and they need
folded values. Quantised products are found before the nodes that dequantise are folded, and then what only lies
between quantised values. Dead nodes are removed before anything is decided about them; then scales become part of
weights, what normalises and is no part of them is written out, and only then are weights flushed and rounded. Places
come before skips (a host node is never skipped) and before cuts (which depend on places). Fusion comes last: it only
groups nodes about which everything else is decided, and moves them together. The graphs inside a node are inferred and
pruned with it: it needs their outputs, and their captures are its inputs.
"""

from __future__ import annotations

from asyncrt.graph.ir import Graph
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.options import RuntimeOptions

from .cut_chunks import cut_chunks
from .flush_weights import flush_weights
from .fold_scales import NORMALIZATIONS, SCALES, fold_scales
from .fourier_products import fourier_products
from .fuse import fuse
from .infer_layouts import infer_layouts
from .mark_runtime_skippable_nodes import mark_runtime_skippable_nodes
from .merge_products import merge_products
from .normalizations import write_out_normalizations
from .place_nodes import place_nodes
from .products_before_loops import products_before_loops
from .quantized import quantized_products, quantized_steps
from .remove_dead_nodes import remove_dead_nodes
from .round_weights import round_weights
from .widen_floats import widen_floats


def run_passes(graph: Graph, traits: DeviceTraits, options: RuntimeOptions) -> None:
    """Turn what the file says into what is run. Changes *graph*."""
    if options.uses("widen_floats") and traits.is_cpu:
        widen_floats(graph)
    infer_layouts(graph, options)
    if options.uses("integer_products") and traits.is_cpu:
        quantized_products(graph)
    if options.uses("quantized_steps") and traits.is_cpu:
        quantized_steps(graph)
    remove_dead_nodes(graph, options)
    if options.uses("fuse"):
        # What is rounded afterwards is to be the weights that the model has, as far as that can be.
        fourier_products(graph)
        products_before_loops(graph)
        fold_scales(graph, NORMALIZATIONS if options.precision == "bf16" else SCALES)
        write_out_normalizations(graph)
        merge_products(graph)
    if options.uses("flush_weights") and traits.is_cpu:
        flush_weights(graph)
    if options.precision == "bf16":
        round_weights(graph)
    _arrange(graph, traits, options)


def _arrange(graph: Graph, traits: DeviceTraits, options: RuntimeOptions) -> None:
    place_nodes(graph, traits, options)
    mark_runtime_skippable_nodes(graph, options)
    cut_chunks(graph, options)
    if options.uses("fuse"):
        fuse(graph)
    for node in graph.nodes:
        for sub in node.subgraphs:
            _arrange(sub.graph, traits, options)
