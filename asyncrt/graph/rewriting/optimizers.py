"""One step of an optimiser, as ONNX's preview of training has them: Momentum, Adagrad and Adam.

Inputs are the rate, how many steps were made, then all tensors that are optimised, their gradients, and the state of
each; outputs are the tensors and the state after the step.

Source: ONNX ai.onnx.preview.training Momentum-1, Adagrad-1, Adam-1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from asyncrt.layout import INT64

from .draft import Draft, Rule

DOMAIN = "ai.onnx.preview.training"
#: From a tensor, its gradient and its state to the tensor and the state after the step.
Step = Callable[[Draft, str, str, Sequence[str]], Sequence[str]]


def _number(draft: Draft, name: str, value: float | None = None) -> str:
    return draft.number(draft.attributes[name] if value is None else value, 2)


def _pulled(draft: Draft, x: str, gradient: str) -> str:
    """Return the gradient with what keeps the tensor small."""
    return draft.add("Add", draft.add("Mul", _number(draft, "norm_coefficient"), x), gradient)


def _mixed(draft: Draft, a: str, b: str, share: float) -> str:
    kept, taken = _number(draft, "", share), _number(draft, "", 1 - share)
    return draft.add("Add", draft.add("Mul", kept, a), draft.add("Mul", taken, b))


def _first(draft: Draft, first: str, later: str) -> str:
    """Return one value in the first step, another in later ones."""
    begins = draft.add("Equal", draft.cast(draft.inputs[1], INT64), draft.constant(0))
    return draft.add("Where", begins, first, later)


def _momentum(draft: Draft, x: str, gradient: str, state: Sequence[str]) -> Sequence[str]:
    given, rate = draft.attributes, draft.inputs[0]
    draft.refuse(given["mode"] not in ("standard", "nesterov"), f"mode '{given['mode']}'")
    pulled = _pulled(draft, x, gradient)
    share = _first(draft, _number(draft, "", 1), _number(draft, "beta"))
    slow = draft.add("Mul", _number(draft, "alpha"), state[0])
    moved = draft.add("Add", slow, draft.add("Mul", share, pulled))
    step = moved
    if given["mode"] == "nesterov":
        step = draft.add("Add", pulled, draft.add("Mul", _number(draft, "alpha"), moved))
    return draft.add("Sub", x, draft.add("Mul", rate, step)), moved


def _adagrad(draft: Draft, x: str, gradient: str, state: Sequence[str]) -> Sequence[str]:
    steps = draft.add("Mul", draft.add("CastLike", draft.inputs[1], x), _number(draft, "decay_factor"))
    rate = draft.add("Div", draft.inputs[0], draft.add("Add", _number(draft, "", 1), steps))
    pulled = _pulled(draft, x, gradient)
    squares = draft.add("Add", state[0], draft.add("Mul", pulled, pulled))
    size = draft.add("Add", draft.add("Sqrt", squares), _number(draft, "epsilon"))
    return draft.add("Sub", x, draft.add("Div", draft.add("Mul", rate, pulled), size)), squares


def _adam(draft: Draft, x: str, gradient: str, state: Sequence[str]) -> Sequence[str]:
    given, pulled = draft.attributes, _pulled(draft, x, gradient)
    first = _mixed(draft, state[0], pulled, given["alpha"])
    second = _mixed(draft, state[1], draft.add("Mul", pulled, pulled), given["beta"])
    size = draft.add("Add", draft.add("Sqrt", second), _number(draft, "epsilon"))
    one, steps = _number(draft, "", 1), draft.add("CastLike", draft.inputs[1], x)

    def rest(name: str) -> str:
        return draft.add("Sub", one, draft.add("Pow", _number(draft, name), steps))

    unbiased = draft.add("Div", draft.add("Mul", draft.inputs[0], draft.add("Sqrt", rest("beta"))), rest("alpha"))
    rate = _first(draft, draft.inputs[0], unbiased)
    moved = draft.add("Sub", x, draft.add("Div", draft.add("Mul", rate, first), size))
    shrunk = draft.add("Mul", draft.add("Sub", one, _number(draft, "norm_coefficient_post")), moved)
    return shrunk, first, second


def _optimizer(step: Step, states: int) -> Rule:
    """Return the rule of an optimiser that keeps so many states of each tensor."""

    def rule(draft: Draft) -> Sequence[str]:
        given = draft.inputs[2:]
        count, rest = divmod(len(given), 2 + states)
        draft.refuse(rest != 0 or count == 0, f"{len(given)} inputs for {2 + states} of each tensor")
        groups = [given[i * count : (i + 1) * count] for i in range(2 + states)]
        results = [step(draft, x, gradient, state) for x, gradient, *state in zip(*groups, strict=True)]
        return [name for made in zip(*results, strict=True) for name in made]

    return rule


RULES: Mapping[str, Rule] = {
    "Adagrad": _optimizer(_adagrad, 1),
    "Adam": _optimizer(_adam, 2),
    "Momentum": _optimizer(_momentum, 1),
}


def find(op: str) -> Rule | None:
    """Return the rule for nodes of an optimiser, or None if there is none."""
    return RULES.get(op)
