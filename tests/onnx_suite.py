"""How much of ONNX's own backend test suite does asyncrt pass?

    python -m tests.onnx_suite [--kind node] [--only SUBSTRING] [--device CPU] [--failures]

Runs the node tests of the installed onnx package, or the models of another kind, through `asyncrt.onnx_backend`, prints
how many passed, failed and are not supported, the reasons, and in how many every node ran on the device. Exits 1 if one
did not pass that is not among `EXCLUDED`.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

import attrs
import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

import asyncrt.onnx_backend
from asyncrt import AsyncrtError, ModelLimitError, ModelTypeError, RuntimeOptions, UnsupportedOperatorError

from .onnx_model_cases import IN_FILES, LIGHT, model_cases

_UNSUPPORTED = (UnsupportedOperatorError, ModelTypeError, ModelLimitError)
# Each model runs once: kernels for sizes it will not see would only be built in vain.
_OPTIONS = RuntimeOptions(warm=False)


_CHANCE = "its numbers are those of onnx's own generator: another one gives others"
_ROUNDED_SIZE = "ONNX Runtime gives what asyncrt gives: the case aligns corners by a size that is not a whole number"
_TRAINING = "asyncrt runs models, and does not train them; ONNX Runtime has no such operator either"
EXCLUDED = {
    **dict.fromkeys(
        (f"test_bernoulli{kind}{form}" for kind in ("", "_double", "_seed") for form in ("", "_expanded")), _CHANCE
    ),
    **dict.fromkeys(("test_gradient_of_add", "test_gradient_of_add_and_mul"), _TRAINING),
    "test_resize_downsample_scales_cubic_align_corners": _ROUNDED_SIZE,
    "test_resize_downsample_scales_linear_align_corners": _ROUNDED_SIZE,
}
"""The tests that asyncrt does not pass, each with the reason."""

MOST_EXCLUDED = 10
"""How many there may be. It can only become less."""


@attrs.frozen
class Outcome:
    """What became of one test.

    Attributes:
        result: "passed", "failed" or "unsupported".
        why: It did not pass.
        nodes: How many nodes its request had, once those that loading calculates are gone.
        on_host: How many of them ran on the host.
    """

    name: str
    result: str
    why: str = ""
    nodes: int = 0
    on_host: int = 0

    @property
    def on_device(self) -> bool:
        """Whether it passed with every node on the device, and there was one."""
        return self.result == "passed" and self.nodes > 0 and not self.on_host


def node_cases() -> list[TestCase]:
    """Return the node tests of the installed onnx package. Takes seconds: onnx computes their data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases' own infinities and overflows
        return list(load_model_tests(kind="node"))


#: ONNX's name for the kind of OpenCL device that there is here.
OPENCL = next((d for d in ("CPU", "CUDA") if asyncrt.onnx_backend.supports_device(d)), "CPU")


def run_case(case: TestCase, device: str = OPENCL) -> Outcome:
    """Run one test as onnx's runner does, with its tolerances."""
    assert case.model is not None
    assert case.data_sets is not None
    try:
        prepared = asyncrt.onnx_backend.prepare(case.model, device, options=_OPTIONS)
    except _UNSUPPORTED as error:
        return Outcome(case.name, "unsupported", error.message)
    except Exception as error:
        return Outcome(case.name, "failed", f"{type(error).__name__} while loading: {_first_line(error)}")
    try:
        for given, wanted in case.data_sets:
            outputs = prepared.run([_array(a) for a in given])
            _assert_similar([_array(a) for a in wanted], list(outputs), case)
        ran = [node.decision for node in prepared.explain().nodes]
    except AssertionError as error:
        operators = "+".join(dict.fromkeys(node.op_type for node in case.model.graph.node))
        return Outcome(case.name, "failed", f"{operators} gives other results: {_first_line(error)}")
    except Exception as error:
        return Outcome(case.name, "failed", f"{type(error).__name__}: {_first_line(error)}")
    finally:
        prepared.close()
    return Outcome(case.name, "passed", nodes=len(ran), on_host=ran.count("host"))


def _assert_similar(wanted: Any, got: Any, case: TestCase) -> None:
    """As onnx's runner compares, but lists of anything, of which it does not compare the lengths."""
    if not isinstance(wanted, list):
        Runner.assert_similar_outputs([wanted], [got], case.rtol, case.atol)
        return
    assert isinstance(got, list), f"expected a list, got a {type(got).__name__}"
    assert len(got) == len(wanted), f"expected {len(wanted)}, got {len(got)}"
    for one, other in zip(wanted, got, strict=True):
        _assert_similar(one, other, case)


def _array(value: Any) -> Any:
    """Return what a test gives or wants as asyncrt takes and gives it: sequences as lists, what is absent as None."""
    match value:
        case onnx.TensorProto():
            return onnx.numpy_helper.to_array(value)
        case onnx.SequenceProto():
            return onnx.numpy_helper.to_list(value)
        case onnx.OptionalProto():
            return onnx.numpy_helper.to_optional(value)
        case None | list():
            return value
    return np.asarray(value)


def _first_line(error: BaseException) -> str:
    text = error.message if isinstance(error, AsyncrtError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[:3])


def _kind(why: str) -> str:
    """Return a reason without what differs from test to test, so that equal reasons are counted together."""
    why = re.sub(r"(gives other results): .*", r"\1", why)
    why = re.sub(r"^\w+_\d+: ", "", why)
    why = re.sub(r"(input|output|initializer) '[^']*'", r"\1", why)
    return why[:110]


def cases_of(kind: str) -> Iterable[TestCase]:
    """Return the cases of a kind: "node", or one of those in files."""
    return node_cases() if kind == "node" else model_cases(kind)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_suite", description=__doc__.splitlines()[0])
    kinds = ("node", *IN_FILES, LIGHT)
    parser.add_argument("--kind", default="node", choices=kinds, help="which tests (default: node)")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="run only tests with this in their name")
    parser.add_argument("--device", default="CPU", help="CPU, CUDA, or a name of asyncrt's (default: CPU)")
    parser.add_argument("--failures", action="store_true", help="list every failed test")
    wanted = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    cases = (case for case in cases_of(wanted.kind) if wanted.only in case.name)
    shown = track(cases, "running", console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
    outcomes = [run_case(case, wanted.device) for case in shown]
    counts = Counter(outcome.result for outcome in outcomes)
    table = Table("result", "tests", "why", box=None)
    reasons = Counter((o.result, _kind(o.why)) for o in outcomes if o.result != "passed")
    for (result, why), count in sorted(reasons.items(), key=lambda item: (item[0][0], -item[1])):
        table.add_row(result, str(count), escape(why))
    console.print(table)
    if wanted.failures:
        for outcome in outcomes:
            if outcome.result == "failed":
                console.print(f"{outcome.name}: {outcome.why}", markup=False, soft_wrap=True)
    console.print(", ".join(f"{counts[r]} {r}" for r in ("passed", "failed", "unsupported")) + f" of {len(outcomes)}")
    console.print(
        f"{sum(o.on_device for o in outcomes)} with every node on the device, "
        f"{sum(o.result == 'passed' and not o.nodes for o in outcomes)} that loading calculates"
    )
    known, ran = {o.name for o in outcomes if o.result != "passed"}, {o.name for o in outcomes}
    for name in sorted(known ^ (EXCLUDED.keys() & ran)):
        console.print(f"{name}: {'passes, and is excluded' if name not in known else 'is not excluded'}", markup=False)
    return 1 if known - EXCLUDED.keys() or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
