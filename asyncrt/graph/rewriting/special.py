"""Nodes of ONNX's own domain that are written in other words: training, losses, chance, and volumes.

A network in training mode normalises by what it sees and drops at random. Chance has a seed: one that a node does not
give is made of its name, so that a request gives the same each time, whatever ran before, and two nodes give different
numbers.

Source: ONNX BatchNormalization-15, Dropout-13, NegativeLogLikelihoodLoss-22, RandomNormal-1, Multinomial-7.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import onnx
from onnx import helper

from asyncrt.graph.sparse import dense
from asyncrt.layout import FLOAT32, FLOAT64

from .draft import Draft, Rule


def find(op: str, opset: int) -> Rule | None:
    """Return the rule that nodes of that operator are asked for from an opset on, or None if there is none."""
    since, rule = RULES.get(op, (0, None))
    return rule if opset >= since else None


def _batch_normalization(draft: Draft) -> tuple[str, ...] | None:
    """Mean and variance are those of the batch; the second and third output are the running ones."""
    given = draft.attributes
    if not given.get("training_mode", 0):
        return None
    x, scale, bias, mean, var = draft.inputs
    dtype = draft.dtype(3)
    flat, axes = draft.shaped(x, 0, 0, -1), draft.constant([0, 2])
    wide = draft.cast(flat, dtype)
    batch_mean = draft.add("ReduceMean", wide, axes, keepdims=0)
    centred = draft.add("Sub", wide, draft.unsqueezed(batch_mean, 0, 2))
    batch_var = draft.add("ReduceMean", draft.add("Mul", centred, centred), axes, keepdims=0)
    y = draft.add("BatchNormalization", x, scale, bias, batch_mean, batch_var, epsilon=given["epsilon"])
    momentum = given["momentum"]
    keep, take = draft.constant(momentum, dtype), draft.constant(1 - momentum, dtype)
    running = [
        draft.add("Add", draft.add("Mul", old, keep), draft.add("Mul", new, take))
        for old, new in ((mean, batch_mean), (var, batch_var))
    ]
    return y, *running


def _constant(draft: Draft) -> str | None:
    """A sparse value is made of what it holds."""
    sparse, name = draft.attributes.get("sparse_value"), draft.name("dense")
    return None if sparse is None else draft.made(dense(sparse, name, draft.title, draft.name), name)


def _grid_sample(draft: Draft) -> str | None:
    """Volumes have an operator of their own; where nothing tells, each request does."""
    ranks = {draft.known_rank(0), draft.known_rank(1)}
    if 5 in ranks:
        return draft.add("VolumeSample", *draft.inputs, domain="asyncrt", **draft.attributes)
    if ranks != {None}:
        return None

    def branch(op: str) -> onnx.GraphProto:
        name = draft.name(op)
        node = helper.make_node(op, draft.inputs, [name], op, domain="asyncrt", **draft.attributes)
        return helper.make_graph([node], op, [], [onnx.ValueInfoProto(name=name)])

    volume = draft.add("Equal", draft.rank(draft.inputs[0]), draft.constant([5]))
    return draft.add("If", volume, then_branch=branch("VolumeSample"), else_branch=branch("ImageSample"))


def _dropout(draft: Draft) -> tuple[str, str] | None:
    """What is kept is scaled so that the mean stays; a request may say whether it trains at all."""
    training = draft.constant_input(2)
    if not draft.has(2) or (training is not None and not training.any()):
        return None
    x, trains = draft.inputs[0], draft.inputs[2]
    one = draft.constant(1, FLOAT64)
    ratio = draft.cast(draft.inputs[1], FLOAT64) if draft.has(1) else draft.constant(0.5, FLOAT64)
    ratio = draft.add("Where", trains, ratio, draft.constant(0, FLOAT64))
    chance = draft.add("RandomUniformLike", x, dtype=FLOAT64.onnx, seed=_seed(draft))
    kept = draft.add("GreaterOrEqual", chance, ratio)
    scale = draft.cast(draft.add("Div", one, draft.add("Sub", one, ratio)), draft.dtype(0))
    return draft.add("Mul", draft.add("Mul", draft.cast(kept, draft.dtype(0)), x), scale), kept


def _losses(draft: Draft, logarithms: str) -> str:
    """Return the losses of *logarithms* by the draft's targets and weights, reduced as it says."""
    target, ignored = draft.inputs[1], draft.attributes.get("ignore_index")
    picked = draft.add(
        "PickClasses", logarithms, target, domain="asyncrt", title=draft.title, ignore_index=ignored
    )
    loss, dtype, weights = draft.add("Neg", picked), draft.dtype(0), ""
    counts = "" if ignored is None else draft.add("Equal", target, draft.number(ignored, 1))
    if draft.has(2):
        known = draft.add("Where", counts, draft.number(0, 1), target) if counts else target
        weights = draft.add("Gather", draft.inputs[2], known)
    if counts:
        one = weights or draft.constant(1, dtype)
        weights = draft.add("Where", counts, draft.constant(0, dtype), one)
    if draft.has(2):
        loss = draft.add("Mul", loss, weights)
    match draft.attributes.get("reduction", "mean"):
        case "none":
            return loss
        case "sum":
            return draft.add("ReduceSum", loss, keepdims=0)
        case "mean" if weights:
            total = draft.add("ReduceSum", weights, keepdims=0)
            return draft.add("Div", draft.add("ReduceSum", loss, keepdims=0), total)
        case "mean":
            return draft.add("ReduceMean", loss, keepdims=0)
    raise draft.unsupported(f"reduction is {draft.attributes['reduction']!r}")


def _likelihood(draft: Draft) -> str:
    """Elements whose target is `ignore_index` do not count; "mean" divides by the weights that count."""
    return _losses(draft, draft.inputs[0])


def _cross_entropy(draft: Draft) -> tuple[str, str]:
    logarithms = draft.add("LogSoftmax", draft.inputs[0], axis=1)
    return _losses(draft, logarithms), logarithms


def _seed(draft: Draft) -> float:
    """Return the node's seed; a float32 holds 24 bits of one that is made up."""
    given = draft.attributes.get("seed")
    return float(zlib.crc32(draft.title.encode()) >> 8) if given is None else float(given)


def _seeded(draft: Draft) -> str | None:
    """Give a node the seed that it lacks, and the dtype of its result."""
    given = dict(draft.attributes)
    if "seed" in given:
        return None
    if draft.op.startswith("Random"):
        given.setdefault("dtype", draft.dtype(0).onnx if draft.inputs else FLOAT32.onnx)
    return draft.add(draft.op, *draft.inputs, seed=_seed(draft), **given)


def _bernoulli(draft: Draft) -> str:
    """1 with the probability that the input says; the body that ONNX gives it has it the other way round."""
    x, wanted = draft.inputs[0], draft.attributes.get("dtype")
    chance = draft.add("RandomUniformLike", x, dtype=FLOAT64.onnx, seed=_seed(draft))
    below = draft.add("Less", chance, draft.cast(x, FLOAT64))
    return draft.add("Cast", below, to=draft.dtype(0).onnx if wanted is None else wanted)


_CHANCE = ("Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")

RULES: Mapping[str, tuple[int, Rule]] = {
    "BatchNormalization": (14, _batch_normalization),
    "Bernoulli": (15, _bernoulli),
    "Constant": (11, _constant),
    "Dropout": (12, _dropout),
    "GridSample": (16, _grid_sample),
    "NegativeLogLikelihoodLoss": (12, _likelihood),
    "SoftmaxCrossEntropyLoss": (12, _cross_entropy),
    **dict.fromkeys(_CHANCE, (1, _seeded)),
}
"""For each operator with a rule: the first opset in which a node may be one that it rewrites."""
