"""The passes: what is known before a request, what runs where, and where the program is cut."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from asyncrt.dims import Dim
from asyncrt.errors import ModelFormatError, ModelLimitError
from asyncrt.graph import importer
from asyncrt.graph.importer import import_model
from asyncrt.graph.ir import FOREVER, Placement
from asyncrt.graph.passes.infer_layouts import infer_layouts
from asyncrt.kernels.decide import SkipMode
from asyncrt.kernels.registry import find_operator
from asyncrt.layout import Array, PartialShape, show_shape
from asyncrt.options import RuntimeOptions

from ..models import BOOL, FLOAT, INT64, OPTIONS, compute, f32, i64, info, model, names, node, program


def _partial(nodes: Sequence[onnx.NodeProto], of: str, constants: dict[str, object]) -> list[object]:
    """What loading knows of an integer value of a model over ``x float32[batch,seq,8]``."""
    graph = import_model(model(nodes, [f32("x", "batch", "seq", 8)], [of], constants), OPTIONS)
    infer_layouts(graph, OPTIONS)
    (value,) = [v for v in graph.values if v.name == of]
    return [] if value.partial is None else [repr(e) for e in value.partial.reshape(-1).tolist()]


SHAPE = [node("Shape", ["x"], ["s"])]


# Folding.


def test_constant_expressions_are_folded_to_what_onnx_computes() -> None:
    """A chain of nodes over initializers leaves one constant, with the value of onnx's evaluator."""
    nodes = [
        node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        node("MatMul", ["w", "wt"], ["square"]),
        node("Softmax", ["square"], ["soft"], axis=0),
        node("Concat", ["soft", "w"], ["c"], axis=1),
        node("Add", ["x", "c"], ["y"]),
    ]
    weights = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    source = model(nodes, [f32("x", "n", 7)], ["y"], {"w": weights})
    x = np.ones((3, 7), np.float32)

    built = program(source)

    assert names(built) == ["Add"]
    (expected,) = ReferenceEvaluator(source).run(None, {"x": x})
    np.testing.assert_allclose(compute(built, {"x": x})[0], expected, rtol=1e-5)


def test_a_constant_that_nothing_reads_any_more_is_let_go() -> None:
    """A weight that was folded into another is not kept in memory beside it."""
    nodes = [node("Transpose", ["w"], ["wt"]), node("MatMul", ["x", "wt"], ["y"])]

    built = program(model(nodes, [f32("x", "n", 4)], ["y"], {"w": np.ones((3, 4), np.float32)}))

    assert [v.name for v in built.values if v.constant is not None] == ["wt"]


@pytest.mark.parametrize(("limit", "expected"), [(100 * 4, ["Mul"]), (100 * 4 - 1, ["ConstantOfShape", "Mul"])])
def test_a_large_result_of_a_small_expression_stays_unfolded(limit: int, expected: list[str]) -> None:
    """`max_folded_bytes` is the largest result that is kept instead of made anew."""
    nodes = [node("ConstantOfShape", ["n"], ["zeros"]), node("Mul", ["x", "zeros"], ["y"])]
    source = model(nodes, [f32("x", 100)], ["y"], {"n": np.array([100])})

    assert names(program(source, RuntimeOptions(max_folded_bytes=limit))) == expected


def test_a_huge_constant_shape_allocates_nothing() -> None:
    """A tensor of 2**60 elements is an expression while loading."""
    nodes = [node("ConstantOfShape", ["n"], ["zeros"]), node("Mul", ["zeros", "x"], ["y"])]

    built = program(model(nodes, [f32("x")], ["y"], {"n": np.array([1 << 30, 1 << 30])}))

    assert names(built) == ["ConstantOfShape", "Mul"]


def test_a_constant_expression_that_fails_names_its_node() -> None:
    """What can never work is reported while loading."""
    nodes = [node("Gather", ["w", "i"], ["bad"], name="look up"), node("Add", ["x", "bad"], ["y"])]
    source = model(nodes, [f32("x", 2)], ["y"], {"w": np.ones(2, np.float32), "i": np.array([5])})

    with pytest.raises(ModelFormatError, match="look up"):
        program(source)


def test_shape_arithmetic_is_known_as_expressions() -> None:
    """batch*seq, computed by the usual nodes, is that product."""
    nodes = [
        *SHAPE,
        node("Gather", ["s", "zero"], ["b"]),
        node("Gather", ["s", "one"], ["q"]),
        node("Mul", ["b", "q"], ["bq"]),
        node("Concat", ["bq", "minus"], ["r"], axis=0),
    ]

    got = _partial(nodes, "r", {"zero": np.array([0]), "one": np.array([1]), "minus": np.array([-1])})

    assert got == ["batch*seq", "-1"]


def test_the_known_part_of_a_shape_is_a_constant() -> None:
    """Gathering only static dims gives a constant, and its reader has nothing left to ask."""
    nodes = [*SHAPE, node("Gather", ["s", "i"], ["r"]), node("Reshape", ["flat", "r"], ["y"])]
    source = model(nodes, [f32("x", "batch", "seq", 8), f32("flat", 8)], ["y"], {"i": np.array([2])})

    assert names(program(source)) == ["Reshape"]


def test_sizes_are_known_as_int32() -> None:
    """As TensorFlow's exporters calculate them; what may be larger than any axis, such as a product, is not."""
    small = [*SHAPE, node("Cast", ["s"], ["c"], to=6)]
    large = [*SHAPE, node("Mul", ["s", "s"], ["m"]), node("Cast", ["m"], ["c"], to=6)]

    assert _partial(small, "c", {}) == ["batch", "seq", "8"]
    assert _partial(large, "c", {}) == []


def test_arithmetic_that_would_wrap_around_is_not_known() -> None:
    """A dim multiplied by constants stays an expression; constants beside it beyond int64 are left to the request."""
    nodes = [*SHAPE, node("Mul", ["s", "big"], ["a"]), node("Mul", ["a", "big"], ["r"])]

    assert _partial(nodes[:2], "a", {"big": np.array(1 << 40)})[2] == str(8 << 40)
    assert _partial(nodes, "r", {"big": np.array(1 << 40)}) == []


def test_a_reshape_by_a_computed_shape_has_that_shape() -> None:
    """Partial values reach the layouts: a merge of batch and seq is written as their product."""
    nodes = [
        *SHAPE,
        node("Gather", ["s", "i"], ["bs"]),
        node("ReduceProd", ["bs"], ["n"], keepdims=1),
        node("Concat", ["n", "eight"], ["r"], axis=0),
        node("Reshape", ["x", "r"], ["y"]),
    ]
    source = model(nodes, [f32("x", "batch", "seq", 8)], ["y"], {"i": np.array([0, 1]), "eight": np.array([8])})

    built = program(source)

    assert str(built.values[built.outputs[0]].layout) == "float32[batch*seq,8]"


def _shown(shape: PartialShape | None, known: Sequence[str]) -> str:
    """A shape as text, with a question mark for dims that have none of the names that are known."""
    if shape is None:
        return "[...]"
    return show_shape([d if not isinstance(d, Dim) or d.names() <= set(known) else "?" for d in shape])  # type: ignore[misc]


@pytest.mark.parametrize(
    ("of", "inputs", "shape"),
    [
        (node("Add", ["x", "z"], ["y"]), [f32("z", "batch", "other", 8)], "[batch,?,8]"),
        (node("Add", ["x", "z"], ["y"]), [f32("z", "other", 1)], "[batch,?,8]"),
        (node("Where", ["c", "x", "z"], ["y"]), [f32("z", 8), info("c", BOOL, ["other", 1])], "[batch,?,8]"),
        (node("Slice", ["x", "two", "nine", "one"], ["y"]), [], "[batch,?,8]"),
        (node("Slice", ["x", "two", "nine"], ["y"]), [], "[?,seq,8]"),
        (node("Slice", ["x", "two", "ends", "one"], ["y"]), [info("ends", INT64, [1])], "[?,?,?]"),
    ],
)
def test_axes_are_known_where_a_dim_is_not(of: onnx.NodeProto, inputs: list[onnx.ValueInfoProto], shape: str) -> None:
    """A dim that only a request knows has a name that nothing else has; the others are what they are."""
    constants = {"one": np.array([1]), "two": np.array([2]), "nine": np.array([9])}
    nodes = [of, node("Concat", ["y", "y"], ["twice"], axis=-1)]

    built = program(model(nodes, [f32("x", "batch", "seq", 8), *inputs], ["y", "twice"], constants))
    y, twice = (built.values[v].layout.shape for v in built.outputs)

    assert _shown(y, ["batch", "seq"]) == shape
    assert twice is not None
    assert len(twice) == 3


# Shapes that can never fit.


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("MatMul", ["x", "w"], ["y"], name="bad")], {"w": np.ones((3, 4), np.float32)}),
        ([node("Add", ["x", "w"], ["y"], name="bad")], {"w": np.ones((3, 4), np.float32)}),
        ([node("Reshape", ["x", "w"], ["y"], name="bad")], {"w": np.array([-1, -1])}),
        ([node("Transpose", ["x"], ["y"], name="bad", perm=[0, 1])], {}),
        ([node("Concat", ["x", "w"], ["y"], name="bad", axis=7)], {"w": np.ones((1, 2, 8), np.float32)}),
        ([node("Gather", ["x", "w"], ["y"], name="bad", axis=-9)], {"w": np.array([0])}),
    ],
)
def test_shapes_that_can_never_fit_are_reported_by_loading(
    nodes: list[onnx.NodeProto], constants: dict[str, Array]
) -> None:
    """Whatever the request, this node would fail; the message names it."""
    with pytest.raises(ModelFormatError, match="bad"):
        program(model(nodes, [f32("x", "batch", "seq", 8)], ["y"], constants))


def test_a_rank_beyond_the_limit_is_reported_by_loading() -> None:
    """`max_rank` holds for what nodes make, too."""
    source = model([node("Reshape", ["x", "s"], ["y"])], [f32("x", 1)], ["y"], {"s": np.ones(9, np.int64)})

    with pytest.raises(ModelLimitError, match="rank 9"):
        program(source)


# Places and chunks.


def test_shape_arithmetic_costs_no_device_command() -> None:
    """Shape, Gather, Unsqueeze, Concat and what is between them run on the host; the Reshape they serve does not."""
    nodes = [
        *SHAPE,
        node("Gather", ["s", "i"], ["b"]),
        node("Mul", ["b", "two"], ["b2"]),
        node("Unsqueeze", ["b2", "axes"], ["u"]),
        node("Concat", ["u", "minus", "two1"], ["r"], axis=0),
        node("Reshape", ["x", "r"], ["y"]),
    ]
    constants = {
        "i": np.array(0), "two": np.array(2), "axes": np.array([0]), "minus": np.array([-1]), "two1": np.array([2])
    }  # fmt: skip

    built = program(model(nodes, [f32("x", "batch", "seq", 8)], ["y"], constants))

    assert {n.operator.name for n in built.nodes if n.place is Placement.DEVICE} == {"Reshape"}
    assert len(built.chunks) == 1


def test_a_shape_given_as_an_input_is_not_read_back() -> None:
    """The caller's integers are on the host: no cut, and the input is one whose value decides."""
    nodes = [node("Mul", ["s", "two"], ["r"]), node("Reshape", ["x", "r"], ["y"])]
    source = model(nodes, [f32("x", "n"), i64("s", 2)], ["y"], {"two": np.array(2)})

    built = program(source)

    assert [n.place for n in built.nodes] == [Placement.HOST, Placement.DEVICE]
    assert len(built.chunks) == 1
    assert [built.values[i].name for i in built.value_inputs] == ["s"]


def test_a_shape_from_float_data_cuts_the_program() -> None:
    """A Reshape whose shape a kernel computes waits for it: two chunks, and one value read between them."""
    nodes = [
        node("Exp", ["f"], ["e"]),
        node("Cast", ["e"], ["r"], to=INT64),
        node("Relu", ["x"], ["a"]),
        node("Reshape", ["a", "r"], ["y"]),
    ]

    built = program(model(nodes, [f32("x", "n"), f32("f", "rank")], ["y"]), RuntimeOptions(without={"fuse"}))

    assert [[n.operator.name for n in c.nodes] for c in built.chunks] == [["Exp", "Cast", "Relu"], ["Reshape"]]
    assert [[built.values[v].name for v in c.reads] for c in built.chunks] == [["r"], []]
    assert built.last_use[_id(built, "a")] == FOREVER
    assert built.last_use[_id(built, "e")] == 1


def test_nodes_that_no_output_needs_are_left_out() -> None:
    """Dead ends are not run, nor is what only they need."""
    nodes = [node("Relu", ["x"], ["y"]), node("Exp", ["x"], ["dead"]), node("Neg", ["dead"], ["deader"])]

    assert names(program(model(nodes, [f32("x", "n")], ["y"]))) == ["Relu"]


def _id(built: object, name: str) -> int:
    (found,) = [v.id for v in built.values if v.name == name]  # type: ignore[attr-defined]
    return int(found)


# Skips.


@pytest.mark.parametrize(
    ("expected", "dims", "perm"),
    [
        (SkipMode.AT_RUNTIME, ("batch", "seq", "heads", 64), [0, 2, 1, 3]),
        (SkipMode.AT_RUNTIME, ("batch", "seq", 12, 64), [0, 2, 1, 3]),
        (SkipMode.NEVER, (2, 3, 4, 5), [0, 2, 1, 3]),
        (SkipMode.ALWAYS, (2, 1, 4, 5), [0, 2, 1, 3]),
        (SkipMode.ALWAYS, ("batch", 1, "seq", 64), [0, 2, 1, 3]),
        (SkipMode.ALWAYS, ("batch", "seq"), [0, 1]),
    ],
)
def test_a_transpose_is_skipped_if_only_unit_axes_move(
    expected: SkipMode, dims: tuple[int | str, ...], perm: list[int]
) -> None:
    """Static dims decide while loading; symbolic ones leave the decision to the request."""
    built = program(model([node("Transpose", ["x"], ["y"], perm=perm)], [f32("x", *dims)], ["y"]))
    (only,) = built.nodes

    assert only.skip_mode is expected


@pytest.mark.parametrize("dims", [("batch", "seq", 8), (2, 3, 8), (1, "seq", 8)])
def test_a_reshape_is_always_skipped(dims: tuple[int | str, ...]) -> None:
    """It moves nothing, whatever the dims are."""
    source = model([node("Reshape", ["x", "s"], ["y"])], [f32("x", *dims)], ["y"], {"s": np.array([0, -1, 4])})
    (only,) = program(source).nodes

    assert only.skip_mode is SkipMode.ALWAYS
    assert only.skip_note == "same bytes, other shape"


@pytest.mark.parametrize(("dims", "wrong"), [((2, 3), True), (("n", 3), False)])
def test_a_skip_rule_that_fails_is_reported_where_nothing_is_open(
    dims: tuple[int | str, ...], wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With static shapes it would fail in every request; with dynamic ones a request may still be fine."""
    relu = find_operator("", "Relu")
    assert relu is not None
    fails = attrs.evolve(relu, views=lambda call: [][0])
    monkeypatch.setattr(importer, "find_operator", lambda d, n: fails)
    source = model([node("Relu", ["x"], ["y"], name="bad")], [f32("x", *dims)], ["y"])

    if wrong:
        with pytest.raises(ModelFormatError, match="bad"):
            program(source)
    else:
        assert [n.skip_mode for n in program(source).nodes] == [SkipMode.AT_RUNTIME]


def test_a_node_on_the_host_is_not_skipped() -> None:
    """Skips are about device commands, and host nodes cost none."""
    nodes = [*SHAPE, node("Squeeze", ["s", "axes"], ["q"]), node("ConstantOfShape", ["q"], ["y"])]
    source = model(nodes, [f32("x", "n")], ["y"], {"axes": np.array([], np.int64)})

    modes = {n.operator.name: (n.place, n.skip_mode) for n in program(source).nodes}

    assert modes["Shape"] == (Placement.HOST, SkipMode.NEVER)


# Subgraphs.


def _branch(name: str, *nodes: onnx.NodeProto, output: str) -> onnx.GraphProto:
    return onnx.helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=output)])


def _if(condition: str = "cond") -> list[onnx.NodeProto]:
    """An If whose branches take `a` (a node's output), `w` (a constant) and, one level deeper, `x` (an input)."""
    inner = node(
        "If", [condition], ["inner"],
        then_branch=_branch("t2", node("Neg", ["x"], ["n"]), output="n"),
        else_branch=_branch("e2", output="w"),
    )  # fmt: skip
    outer = node(
        "If", [condition], ["y"], name="choose",
        then_branch=_branch("then", node("Add", ["a", "w"], ["t"]), output="t"),
        else_branch=_branch("else", inner, output="inner"),
    )  # fmt: skip
    return [outer, node("Exp", ["x"], ["a"])]


def _if_model(condition: dict[str, Array]) -> onnx.ModelProto:
    inputs = [f32("x", 3)] + ([] if condition else [info("cond", BOOL, ["one"])])
    return model(_if(), inputs, ["y"], {"w": np.ones(3, np.float32), **condition})


def test_what_a_subgraph_takes_from_outside_is_a_use() -> None:
    """The nodes that make captured values stay, come first, and their values live until the node that captures."""
    built = program(_if_model({}))

    assert names(built) == ["Exp", "If"]
    choose = built.nodes[1]
    assert sorted(built.values[v].name for v in choose.captures) == ["a", "cond", "x"]
    assert built.values[_id(built, "a")].readers == (1,)
    assert [chunk.control for chunk in built.chunks] == [None, choose, None]


def test_captured_constants_are_constants_inside() -> None:
    """So a subgraph's weights are packed and brought to the device like the model's."""
    built = program(_if_model({}))
    then = built.nodes[1].subgraphs[0].program

    assert then is not None
    assert [(then.values[i].name, str(then.values[i].layout)) for i in then.inputs] == [("a", "float32[3]")]
    assert [then.values[v].name for v in then.device_constants] == ["w"]


def test_a_subgraph_knows_the_layouts_of_what_it_captures() -> None:
    """And the If those that its branches agree on; a dim that differs is one of which nothing is known."""
    choose = node(
        "If", ["cond"], ["y", "z"],
        then_branch=onnx.helper.make_graph(
            [node("Transpose", ["x"], ["t"]), node("Neg", ["x"], ["n"])], "t", [], [_named("t"), _named("n")]
        ),
        else_branch=onnx.helper.make_graph([], "e", [], [_named("x"), _named("x")]),
    )  # fmt: skip
    built = program(model([choose], [f32("x", "n", 4), info("cond", BOOL, ["one"])], ["y", "z"]))

    shapes = [built.values[v].layout.shape for v in built.outputs]
    assert show_shape(shapes[1]) == "[n,4]"
    assert shapes[0] is not None
    assert all(isinstance(d, Dim) and d.name != "n" for d in shapes[0])


@pytest.mark.parametrize("condition", [True, False])
def test_an_if_with_a_constant_condition_is_its_branch(condition: bool) -> None:
    """The branch's nodes stand in its place, also those of an If inside it; nothing is cut, and constants fold."""
    built = program(_if_model({"cond": np.array(condition)}))

    assert names(built) == (["Exp", "Add"] if condition else [])
    assert len(built.chunks) == 1


def _named(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)


def _loop(*nodes: onnx.NodeProto, outputs: Sequence[str], carried: Sequence[str] = ("v",)) -> onnx.NodeProto:
    inputs = [info("i", INT64, []), info("c", BOOL, []), *(onnx.ValueInfoProto(name=n) for n in carried)]
    body = onnx.helper.make_graph(list(nodes), "body", inputs, [_named(o) for o in outputs])
    return node("Loop", ["", "go", *("x" for _ in carried)], [f"y{i}" for i in range(len(outputs) - 1)], body=body)


@pytest.mark.parametrize(
    ("nodes", "outputs", "shapes"),
    [
        ([node("Neg", ["v"], ["w"])], "c w w", ["[n,4]", "[?,?,4]"]),
        ([node("Concat", ["v", "x"], ["w"], axis=0)], "c w", ["[?,4]"]),
        ([node("Transpose", ["v"], ["w"])], "c w", ["[?,?]"]),
        ([node("ReduceSum", ["v"], ["w"], keepdims=0)], "c w", ["[...]"]),
    ],
)
def test_a_loop_knows_of_carried_values_what_every_iteration_keeps(
    nodes: list[onnx.NodeProto], outputs: str, shapes: list[str]
) -> None:
    """Dims that iterations may change are unknown, those that they keep are known, after the loop and in its body."""
    loop = _loop(*nodes, outputs=outputs.split())

    built = program(model([loop], [f32("x", "n", 4), info("go", BOOL, [])], list(loop.output)))

    def shown(shape: PartialShape | None) -> str:
        known = [d if not isinstance(d, Dim) or d.name == "n" else "?" for d in shape or ()]
        return "[...]" if shape is None else show_shape(known)

    body = built.nodes[0].subgraphs[0].program
    assert body is not None
    assert [shown(built.values[v].layout.shape) for v in built.outputs] == shapes
    assert shown(body.values[body.inputs[2]].layout.shape) == shapes[0]


def test_carried_values_that_depend_on_each_other_are_inferred_together() -> None:
    """One value's change reaches the next only in a later iteration, through as many as there are."""
    names = [f"v{k}" for k in range(8)]
    grow = node("Concat", ["v0", "x"], ["w"], axis=0)
    loop = _loop(grow, outputs=["c", "w", *names[:-1]], carried=names)

    built = program(model([loop], [f32("x", "n"), info("go", BOOL, [])], ["y0", "y7"]))

    assert len(built.outputs) == 2
    for v in built.outputs:
        shape = built.values[v].layout.shape
        assert shape is None or all(isinstance(d, Dim) and d.name != "n" for d in shape)


def test_loops_in_loops_load_in_no_time() -> None:
    """Inference guesses at carried layouts only so many times, however deep loops are nested."""
    grow = node("Concat", ["v", "v"], ["w"], axis=0)
    for _ in range(20):
        inside = _loop(grow, outputs=["c", "w"])
        grow = node("Loop", ["", "go", "v"], ["w"], body=inside.attribute[0].g)

    built = program(model([_loop(grow, outputs=["c", "w"])], [f32("x", "n"), info("go", BOOL, [])], ["y0"]))

    assert names(built) == ["Loop"]


def test_a_subgraph_may_not_take_what_nobody_makes() -> None:
    """A name that is unknown inside and outside is reported with the node whose subgraph uses it."""
    source = model(_if(), [info("cond", BOOL, ["one"]), f32("x", 3)], ["y"])

    with pytest.raises(ModelFormatError, match="choose takes 'w'"):
        program(source)


def test_dims_of_inputs_without_names_are_all_different() -> None:
    """Two unnamed dims are not the same dim, even where another input uses the name that one would get."""
    source = model(
        [node("Relu", ["x"], ["y"])], [f32("x", None), f32("z", "x.0"), info("w", FLOAT, None)], ["y"]
    )

    built = program(source)
    x, z, w = (built.values[i].layout.shape for i in built.inputs)

    assert w is None
    assert x is not None
    assert z is not None
    assert isinstance(x[0], Dim)
    assert not x[0].same_as(z[0])
