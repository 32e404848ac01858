"""Operators of ai.onnx.ml on numbers, as operators of ONNX: scalers, encoders, linear models, support vectors, trees.

Labels that are texts are looked up on the host, by numbers that the device makes. What turns texts into other things
stays an operator of its own, in `kernels/ops/text`, and so do maps.

Source: onnx/docs/Operators-ml.md, and for what classifiers of two classes give ONNX Runtime.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes
from asyncrt.layout import BOOL, FLOAT32, INT64, STRING, DataType, dtype_of

from .draft import Draft, Rule
from .trees import of_arrays, of_lists, scores

DOMAIN = "ai.onnx.ml"


def _row(draft: Draft, values: Any, dtype: DataType = FLOAT32) -> str:
    return draft.constant(list(values), dtype)


def _after(draft: Draft, y: str, transform: str) -> str:
    """Return scores after a post_transform."""
    if transform == "NONE":
        return y
    if transform == "LOGISTIC":
        return draft.add("Sigmoid", y)
    if transform == "SOFTMAX":
        return draft.add("Softmax", y, axis=-1)
    draft.refuse(transform != "SOFTMAX_ZERO", f"post_transform '{transform}'")
    # Zeros stay zeros, and do not count.
    zero = draft.add("Equal", y, draft.constant(0, FLOAT32))
    far = draft.add("Where", zero, draft.constant(-np.inf, FLOAT32), y)
    soft = draft.add("Softmax", far, axis=-1)
    return draft.add("Where", zero, draft.constant(0, FLOAT32), soft)


def _scaler(draft: Draft) -> str:
    given, x = draft.attributes, draft.floats(0)
    x = draft.add("Sub", x, _row(draft, given["offset"])) if given.get("offset") else x
    return draft.add("Mul", x, _row(draft, given["scale"])) if given.get("scale") else x


def _normalizer(draft: Draft) -> str:
    """A row whose norm is 0 stays as it is."""
    norm, x, last = draft.attributes["norm"], draft.floats(0), draft.constant([-1])
    ops = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}
    draft.refuse(norm not in ops, f"norm '{norm}'")
    size = draft.add(ops[norm], x, last, keepdims=1)
    safe = draft.add("Where", draft.cast(size, BOOL), size, draft.constant(1, FLOAT32))
    return draft.add("Div", x, safe)


def _binarizer(draft: Draft) -> str:
    above = draft.add("Greater", draft.inputs[0], draft.number(draft.attributes["threshold"]))
    return draft.cast(above, draft.dtype(0))


def _imputer(draft: Draft) -> str:
    given, dtype = draft.attributes, draft.dtype(0)
    kind = "floats" if dtype.is_float else "int64s"
    values = given.get(f"imputed_value_{kind}", ())
    draft.refuse(not values, f"it has no imputed_value_{kind}")
    replaced = given["replaced_value_float"] if dtype.is_float else given["replaced_value_int64"]
    x = draft.inputs[0]
    if replaced != replaced:
        missing = draft.add("IsNaN", x)
    else:
        missing = draft.add("Equal", x, draft.number(replaced))
    return draft.add("Where", missing, _row(draft, values, dtype), x)


def _keys(draft: Draft, name: str) -> tuple[Any, str]:
    """Return the numbers of a label encoder's keys or values, and their kind."""
    given = draft.attributes
    if given.get(f"{name}_tensor") is not None:
        return given[f"{name}_tensor"].reshape(-1), "tensor"
    for kind, dtype in (("int64s", np.int64), ("floats", np.float32)):
        if given.get(f"{name}_{kind}"):
            return np.array(given[f"{name}_{kind}"], dtype), kind
    raise draft.unsupported(f"its {name} are no numbers")


def _label_encoder(draft: Draft) -> str | None:
    """The first of equal keys counts; what is no key gets the default. With texts among them it stays."""
    given = draft.attributes
    if draft.dtype(0) is STRING or _has_texts(given):
        return None
    (keys, _), (values, kind) = _keys(draft, "keys"), _keys(draft, "values")
    draft.refuse(len(keys) != len(values) or not len(keys), f"{len(keys)} keys and {len(values)} values")
    default = {"int64s": given.get("default_int64", -1), "floats": given.get("default_float", -0.0)}.get(kind)
    if kind == "tensor":
        tensor = given.get("default_tensor")
        default = tensor.reshape(-1)[0] if tensor is not None else (-1 if values.dtype.kind in "iu" else -0.0)
    dtype = dtype_of(values.dtype)
    assert dtype is not None
    wide = draft.unsqueezed(draft.inputs[0], -1)
    same = draft.add("Equal", wide, draft.constant(keys, keys.dtype))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        missing = draft.add("And", draft.add("IsNaN", wide), draft.constant(np.isnan(keys), np.bool_))
        same = draft.add("Or", same, missing)
    found = draft.cast(same, INT64)
    place = draft.add("ArgMax", found, axis=-1, keepdims=0)
    known = draft.cast(draft.add("ReduceMax", found, draft.constant([-1]), keepdims=0), BOOL)
    return draft.add(
        "Where", known, draft.add("Gather", draft.constant(values, dtype), place), draft.constant(default, dtype)
    )


def _has_texts(given: Attributes) -> bool:
    tensors = [given.get(f"{name}_tensor") for name in ("keys", "values", "default")]
    named = any(given.get(f"{name}_strings") for name in ("keys", "values"))
    return named or any(t is not None and t.dtype == STRING.numpy for t in tensors)


def _one_hot(draft: Draft) -> str | None:
    """Texts stay texts, and are looked up on the host."""
    given = draft.attributes
    if draft.dtype(0) is STRING:
        return None
    categories = given.get("cats_int64s", ())
    draft.refuse(not categories, "its categories are no numbers")
    draft.refuse(not given["zeros"], "zeros=0, with which an unknown category is an error")
    wide = draft.unsqueezed(draft.cast(draft.inputs[0], INT64), -1)
    return draft.cast(draft.add("Equal", wide, _row(draft, categories, INT64)), FLOAT32)


def _extractor(draft: Draft) -> str:
    """Columns of the last axis; what has one axis is one row."""
    x, columns = draft.inputs[0], draft.shaped(draft.inputs[1], -1)
    rank = draft.known_rank(0)
    if rank is None:
        missing = draft.add("Max", draft.add("Sub", draft.constant([2]), draft.rank(x)), draft.constant([0]))
        x = draft.shaped(x, draft.add("Expand", draft.constant([1]), missing), draft.dims(x))
    elif rank == 1:
        x = draft.unsqueezed(x, 0)
    return draft.add("Gather", x, columns, axis=-1)


def _vectorizer(draft: Draft) -> str:
    """Parts side by side, each cut to its dimension."""
    sizes = draft.attributes.get("inputdimensions", ())
    draft.refuse(len(sizes) != len(draft.inputs), f"{len(sizes)} inputdimensions for {len(draft.inputs)} inputs")
    parts = []
    for name, size in zip(draft.inputs, sizes, strict=True):
        rows = draft.shaped(draft.cast(name, FLOAT32), 0, -1)
        bounds = (draft.constant([v]) for v in (0, size, 1))
        parts.append(draft.add("Slice", rows, *bounds))
    return draft.concat(*parts, axis=1)


def _linear(draft: Draft, targets: int) -> str:
    given = draft.attributes
    weights, bias = given.get("coefficients", ()), given.get("intercepts", ())
    draft.refuse(targets < 1 or not weights or len(weights) % targets != 0, f"{len(weights)} coefficients")
    draft.refuse(bool(bias) and len(bias) != targets, f"{len(bias)} intercepts for {targets} targets")
    matrix = draft.constant(np.reshape(weights, (targets, -1)), FLOAT32)
    inputs = (draft.floats(0), matrix, _row(draft, bias)) if bias else (draft.floats(0), matrix)
    return draft.add("Gemm", *inputs, transB=1)


def _linear_regressor(draft: Draft) -> str:
    return _after(draft, _linear(draft, draft.attributes["targets"]), draft.attributes["post_transform"])


def _labels(draft: Draft, name: str) -> str:
    labels, texts = _names(draft, name)
    draft.refuse(not labels, "it has no labels")
    return _row(draft, labels, STRING if texts else INT64)


def _names(draft: Draft, name: str) -> tuple[Sequence[Any], bool]:
    """Return a classifier's labels, and whether they are texts."""
    texts: Sequence[Any] = draft.attributes.get("classlabels_strings", ())
    return (texts, True) if texts else (draft.attributes.get(name, ()), False)


def _named(draft: Draft, labels: str, y: str) -> str:
    """Return the label of the greatest score of each row."""
    return draft.add("Gather", labels, draft.add("ArgMax", y, axis=-1, keepdims=0))


def _of_two(draft: Draft, labels: str, y: str, least: float) -> str:
    """Return one label of two, by whether the only score is above *least*."""
    above = draft.add("Greater", draft.shaped(y, -1), draft.constant(least, FLOAT32))
    return draft.add("Gather", labels, draft.cast(above, INT64))


def _both(draft: Draft, y: str, transform: str, *, share: bool) -> str:
    """Return two scores for the one of the second class: its rest to 1 where it is a *share*, else its negative."""
    if transform == "LOGISTIC":
        return draft.add("Sigmoid", draft.concat(draft.add("Neg", y), y, axis=1))
    rest = draft.add("Sub", draft.constant(1, FLOAT32), y) if share else draft.add("Neg", y)
    return draft.concat(rest, y, axis=1)


def _linear_classifier(draft: Draft) -> tuple[str, str]:
    given = draft.attributes
    (names, _), labels = _names(draft, "classlabels_ints"), _labels(draft, "classlabels_ints")
    count = len(given.get("intercepts", ())) or len(names)
    y, transform = _linear(draft, count), given["post_transform"]
    if count == 1:
        draft.refuse(len(names) != 2, f"one score for {len(names)} classes")
        return _of_two(draft, labels, y, 0.0), _both(draft, y, transform, share=True)
    return _named(draft, labels, y), _after(draft, y, transform)


def _tree_regressor(draft: Draft) -> str:
    given = draft.attributes
    base = given.get("base_values_as_tensor")
    base = list(given.get("base_values", ())) if base is None else base.reshape(-1).tolist()
    y = scores(draft, of_lists(draft, "target"), given.get("n_targets", 1), base, given["aggregate_function"])
    return _after(draft, y, given["post_transform"])


def _tree_ensemble(draft: Draft) -> str | None:
    """One that asks for members of sets stays: a set may have any number of them."""
    given = draft.attributes
    if given.get("membership_values") is not None:
        return None
    kinds, transforms = ("AVERAGE", "SUM", "MIN", "MAX"), ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    kind, transform = given["aggregate_function"], given["post_transform"]
    draft.refuse(not 0 <= kind < 4 or not 0 <= transform < 5, "an attribute that is out of range")
    y = scores(draft, of_arrays(draft), given.get("n_targets", 1), (), kinds[kind])
    return draft.cast(_after(draft, y, transforms[transform]), draft.dtype(0))


def _tree_classifier(draft: Draft) -> tuple[str, str]:
    given, transform = draft.attributes, draft.attributes["post_transform"]
    (names, _), labels = _names(draft, "classlabels_int64s"), _labels(draft, "classlabels_int64s")
    tensor = given.get("base_values_as_tensor")
    base = list(given.get("base_values", ())) if tensor is None else tensor.reshape(-1).tolist()
    tree = of_lists(draft, "class")
    ids = {target for leaf in tree.leaves.values() for target, _ in leaf}
    if len(names) == 2 and len(ids) == 1:  # all weights are of one class, and say how likely the second one is
        leaves = {node: [(0, weight) for _, weight in leaf] for node, leaf in tree.leaves.items()}
        share = all(weight >= 0 for leaf in leaves.values() for _, weight in leaf)
        y = scores(draft, tree._replace(leaves=leaves), 1, base[-1:], "SUM")
        label = _of_two(draft, labels, y, 0.5 if share else 0.0)
        if ids == {0}:
            return label, _both(draft, y, transform, share=share)
        nothing = draft.add("Sub", y, y)  # written for the second class, the score leaves the first one at 0
        return label, _after(draft, draft.concat(nothing, y, axis=1), transform)
    y = scores(draft, tree, len(names), base, "SUM")
    if len(names) == 2:  # ONNX Runtime asks the second class alone, also where both have a score
        second = draft.add("Gather", y, draft.constant([1]), axis=1)
        return _of_two(draft, labels, second, 0.0), _after(draft, y, transform)
    return _named(draft, labels, y), _after(draft, y, transform)


def _similarity(draft: Draft, x: str, vectors: Any) -> str:
    """Return how each row compares with each support vector, by the kernel function."""
    given = draft.attributes
    gamma, shift, degree = [*given.get("kernel_params", ()), 0.0, 0.0, 3.0][:3]
    kind = given["kernel_type"]
    dot = draft.add("MatMul", x, draft.constant(vectors.T, FLOAT32))
    if kind == "LINEAR":
        return dot
    if kind == "RBF":
        squares = draft.add("ReduceSumSquare", x, draft.constant([1]), keepdims=1)
        own = draft.constant((vectors.astype(np.float64) ** 2).sum(1), FLOAT32)
        far = draft.add("Sub", draft.add("Add", squares, own), draft.add("Mul", dot, draft.constant(2, FLOAT32)))
        return draft.add("Exp", draft.add("Mul", far, draft.constant(-gamma, FLOAT32)))
    bent = draft.add("Add", draft.add("Mul", dot, draft.constant(gamma, FLOAT32)), draft.constant(shift, FLOAT32))
    if kind == "SIGMOID":
        return draft.add("Tanh", bent)
    draft.refuse(kind != "POLY", f"kernel_type '{kind}'")
    return draft.add("Pow", bent, draft.constant(degree, FLOAT32))


def _svm_classifier(draft: Draft) -> tuple[str, str]:
    """A score for each pair of classes; each pair votes. Scores become probabilities where the file says how."""
    given, transform = draft.attributes, draft.attributes["post_transform"]
    (names, _), labels = _names(draft, "classlabels_ints"), _labels(draft, "classlabels_ints")
    rho = given.get("rho", ()) or (0.0,)
    if not sum(given.get("vectors_per_class", ())):
        y = _linear_scores(draft, len(names), rho[0])
        return _named(draft, labels, y), _after(draft, y, transform)
    matrix, vectors = _pairs(draft, len(names))
    draft.refuse(len(rho) != matrix.shape[1], f"{len(rho)} numbers in rho for {matrix.shape[1]} pairs of classes")
    y = draft.add("MatMul", _similarity(draft, draft.floats(0), vectors), draft.constant(matrix, FLOAT32))
    y = draft.add("Add", y, _row(draft, rho))
    first = draft.add("Greater", y, draft.constant(0, FLOAT32))
    # Who gets the vote of a pair if it is for the second class, and for the first one.
    ballots = np.zeros((2, len(rho), len(names)), np.float32)
    for pair, (i, j) in enumerate(itertools.combinations(range(len(names)), 2)):
        ballots[0, pair, j] = ballots[1, pair, i] = 1
    votes = draft.add("MatMul", draft.cast(first, FLOAT32), draft.constant(ballots[1] - ballots[0], FLOAT32))
    votes = draft.add("Add", votes, draft.constant(ballots[0].sum(0), FLOAT32))
    label = _named(draft, labels, votes)
    slopes, shifts = given.get("prob_a", ()), given.get("prob_b", ())
    if slopes:
        draft.refuse(len(slopes) != len(rho) or len(shifts) != len(rho), "prob_a, prob_b and rho differ in length")
        bent = draft.add("Add", draft.add("Mul", y, _row(draft, slopes)), _row(draft, shifts))
        shares = draft.add("Sigmoid", draft.add("Neg", bent))
        return label, _after(draft, draft.add("PairwiseShares", shares, domain="asyncrt"), transform)
    return label, _both(draft, y, transform, share=False) if len(names) == 2 else _after(draft, y, transform)


def _linear_scores(draft: Draft, classes: int, shift: float) -> str:
    weights = draft.attributes.get("coefficients", ())
    draft.refuse(not weights or len(weights) % classes != 0, f"{len(weights)} coefficients for {classes} classes")
    matrix = draft.constant(np.reshape(weights, (classes, -1)).T, FLOAT32)
    return draft.add("Add", draft.add("MatMul", draft.floats(0), matrix), draft.constant(shift, FLOAT32))


def _pairs(draft: Draft, classes: int) -> tuple[Any, Any]:
    """Return for each pair of classes the weights of all support vectors, and these."""
    given = draft.attributes
    counts = list(given.get("vectors_per_class", ()))
    total, flat = sum(counts), np.asarray(given.get("support_vectors", ()), np.float32)
    weights = np.asarray(given.get("coefficients", ()), np.float32)
    wrong = len(counts) != classes or classes < 2 or min(counts) < 0 or not flat.size or flat.size % total != 0
    draft.refuse(wrong or weights.size != total * (classes - 1), "its vectors, coefficients and classes do not fit")
    weights = weights.reshape(classes - 1, total)
    ends = np.cumsum([0, *counts])
    pairs = list(itertools.combinations(range(classes), 2))
    matrix = np.zeros((total, len(pairs)), np.float32)
    for pair, (i, j) in enumerate(pairs):
        matrix[ends[i] : ends[i + 1], pair] = weights[j - 1, ends[i] : ends[i + 1]]
        matrix[ends[j] : ends[j + 1], pair] = weights[i, ends[j] : ends[j + 1]]
    return matrix, flat.reshape(total, -1)


def _svm_regressor(draft: Draft) -> str:
    given = draft.attributes
    weights, count = np.asarray(given.get("coefficients", ()), np.float32), given["n_supports"]
    rho = given.get("rho", ()) or (0.0,)
    x = draft.floats(0)
    if count > 0:
        vectors = np.asarray(given.get("support_vectors", ()), np.float32)
        draft.refuse(len(weights) != count or not len(vectors) or len(vectors) % count != 0, "its vectors do not fit")
        x = _similarity(draft, x, vectors.reshape(count, -1))
    else:
        draft.refuse(given["kernel_type"] != "LINEAR" or not len(weights), "it has no support vectors")
    y = draft.add("MatMul", x, draft.constant(weights.reshape(-1, 1), FLOAT32))
    y = draft.add("Add", y, draft.constant(rho[0], FLOAT32))
    if given["one_class"]:
        above = draft.add("Greater", y, draft.constant(0, FLOAT32))
        return draft.add("Where", above, draft.constant(1, FLOAT32), draft.constant(-1, FLOAT32))
    return _after(draft, y, given["post_transform"])


RULES: Mapping[str, Callable[[Draft], Any]] = {
    "ArrayFeatureExtractor": _extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _vectorizer,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot,
    "SVMClassifier": _svm_classifier,
    "SVMRegressor": _svm_regressor,
    "Scaler": _scaler,
    "TreeEnsemble": _tree_ensemble,
    "TreeEnsembleClassifier": _tree_classifier,
    "TreeEnsembleRegressor": _tree_regressor,
}


def find(op: str) -> Rule | None:
    """Return the rule for nodes of an operator of ai.onnx.ml, or None if there is none."""
    return RULES.get(op)
