"""Models that are wrong in every way that files are known to have been wrong: a class each, and several of each class.

A class is a function that gives models as bytes, named after what is wrong with them. Some are right after all, as a
node's name that stands twice; those have to run and give what ONNX Runtime gives. Nothing is drawn by chance but by
seeds, so a number always is the same model.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from asyncrt import Runtime, RuntimeOptions

from ...builders import model as build
from ...builders import node
from .corpus import Origin, in_files
from .models import DEADLINE_S, LIMITS, Case, Place, expecting, opened
from .mutations import PLACES
from .requests import fitting

Variants: TypeAlias = Iterator[bytes]
MAX_NODES = 2000
"""Of the models that are loaded: a server that takes files of anybody sets a limit to suit its patience."""

_FLOATS = ("x f32[n,4]",)


def _right() -> onnx.ModelProto:
    """What most classes make wrong: a product, a sum and a name of a dim."""
    constants = {"w": np.eye(4, dtype=np.float32), "b": np.ones(4, np.float32)}
    return build([node("t = MatMul(x, w)"), node("y = Add(t, b)")], list(_FLOATS), ["y"], constants)


def _bytes() -> bytes:
    return bytes(_right().SerializeToString())


def _changed(change: Callable[[onnx.ModelProto], object]) -> bytes:
    model = _right()
    change(model)
    return bytes(model.SerializeToString())


def _around(
    op: str, inputs: dict[str, Any], given: tuple[str, ...] = _FLOATS, opset: int = 18, **attributes: Any
) -> bytes:
    """A model of one operator, which takes what is given and then constants."""
    names = [text.split()[0] for text in given]
    made = helper.make_node(op, [*names, *inputs], ["y"], **attributes)
    constants = {name: np.asarray(value) for name, value in inputs.items()}
    return bytes(build([made], list(given), ["y"], constants, opset=opset).SerializeToString())


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def _field(number: int, body: bytes, kind: int = 2) -> bytes:
    return _varint(number << 3 | kind) + (_varint(len(body)) if kind == 2 else b"") + body


# Bytes.


def empty_file() -> Variants:
    yield from (b"", b"\0", bytes(4096), b"\n", b"ONNX", b"PK\3\4" + bytes(30))


def truncated() -> Variants:
    data = _bytes()
    yield from (data[: len(data) * i // 64] for i in range(1, 64))


def bytes_flipped() -> Variants:
    for seed in range(40):
        chance, data = random.Random(seed), bytearray(_bytes())
        for _ in range(chance.choice((1, 2, 8, 64))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        yield bytes(data)


def number_too_long() -> Variants:
    for end in (b"\1", b"\x7f", b"\xff" * 20):
        yield b"\x08" + b"\xff" * 9 + end + _bytes()
        yield _bytes() + b"\x08" + b"\xff" * 10 + end
        yield _bytes() + b"\xff" * 9 + end


def length_beyond_the_end() -> Variants:
    data = _bytes()
    for number in (1, 2, 5, 7, 8, 14, 20, 25):
        for length in (len(data) + 1, 2**31 - 1, 2**31, 2**63):
            yield data + _varint(number << 3 | 2) + _varint(length)


def unknown_fields() -> Variants:
    data = _bytes()
    for unknown in (b"\xf8\x07\1", _field(127, b"abc"), _field(127, b"", 5) + bytes(4), _field(536870911, b"")):
        yield data + unknown * 250_000
        yield _field(7, unknown * 1000) + data


def nested() -> Variants:
    for depth in (10, 33, 100, 1_000, 20_000):
        graph = b""
        for _ in range(depth):  # a graph of a node with an attribute that is the graph before
            graph = _field(
                1, _field(4, b"If") + _field(5, _field(1, b"then_branch") + _field(6, graph) + _field(20, b"\5", 0))
            )
        yield _bytes() + _field(7, graph)
        kind = b""
        for _ in range(depth):  # a sequence of sequences
            kind = _field(4, _field(1, kind))
        yield _bytes() + _field(7, _field(11, _field(1, b"z") + _field(2, kind)))


def groups() -> Variants:
    for count in (1, 99, 100, 100_000):
        yield _bytes() + b"\x0b" * count
        yield _bytes() + b"\x0b" * count + b"\x0c" * count
        yield b"\x0c" * count + _bytes()


def more_declared_than_there_is() -> Variants:
    for dims in ((1 << 29,), (1 << 15, 1 << 14), (1 << 31,), (1 << 20,)):
        for kind in (TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT4, TensorProto.STRING):

            def change(model: onnx.ModelProto, dims: Any = dims, kind: int = kind) -> None:
                model.graph.initializer[0].CopyFrom(TensorProto(name="w", dims=dims, data_type=kind))

            yield _changed(change)


# Names and wires.


def node_names_twice() -> Variants:
    for name in ("", "same", "y", "x"):
        yield _changed(lambda m, name=name: [setattr(n, "name", name) for n in m.graph.node])


def outputs_twice() -> Variants:
    yield _changed(lambda m: m.graph.output.add().CopyFrom(m.graph.output[0]))
    yield _changed(lambda m: m.graph.node.add().CopyFrom(m.graph.node[1]))
    yield _changed(lambda m: m.graph.node[1].output.append("y"))
    yield _changed(lambda m: setattr(m.graph.output.add(), "name", "x"))
    yield _changed(lambda m: m.graph.initializer.add().CopyFrom(m.graph.initializer[0]))


def cycle() -> Variants:
    for length in (2, 3, 10, 1000):

        def change(model: onnx.ModelProto, length: int = length) -> None:
            for i in range(length):
                model.graph.node.add(op_type="Relu", input=[f"c{i}"], output=[f"c{(i + 1) % length}"])
            model.graph.node[1].input[1] = "c0"

        yield _changed(change)


def self_loop() -> Variants:
    for op in ("Relu", "Add", "If", "Loop", "Identity", "Shape"):
        yield _changed(
            lambda m, op=op: m.graph.node.add(op_type=op, input=["s"] * (2 if op == "Add" else 1), output=["s"])
        )


def cycle_of_functions() -> Variants:
    for calls in ({"A": "A"}, {"A": "B", "B": "A"}, {"A": "B", "B": "C", "C": "B"}):
        for inside in (False, True):
            model = _right()
            model.opset_import.add(domain="own", version=1)
            for name, called in calls.items():
                function = model.functions.add(name=name, domain="own", input=["p"], output=["q"])
                function.opset_import.add(version=18)
                function.opset_import.add(domain="own", version=1)
                call = helper.make_node(called, ["p"], ["q"], domain="own")
                if inside:
                    body = helper.make_graph([call], "b", [], [onnx.ValueInfoProto(name="q")])
                    call = helper.make_node("If", ["p"], ["q"], then_branch=body, else_branch=body)
                function.node.append(call)
            model.graph.node[0].CopyFrom(helper.make_node("A", ["x"], ["t"], domain="own"))
            yield bytes(model.SerializeToString())


def cycle_through_a_branch() -> Variants:
    for wanted in ("y", "t2", "x"):
        branch = helper.make_graph([helper.make_node("Neg", [wanted], ["q"])], "b", [], [onnx.ValueInfoProto(name="q")])
        branch.output[0].type.tensor_type.elem_type = 1
        nodes = [helper.make_node("If", ["c"], ["t2"], then_branch=branch, else_branch=branch), node("y = Add(t2, x)")]
        yield bytes(build(nodes, [*_FLOATS], ["y"], {"c": np.array(True)}).SerializeToString())


def input_missing() -> Variants:
    for op, count in (("MatMul", 0), ("MatMul", 1), ("Add", 3), ("Concat", 0), ("Relu", 2), ("Conv", 1), ("Gemm", 9)):
        yield _changed(lambda m, op=op, c=count: m.graph.node.add(op_type=op, input=["x"] * c, output=["z"]))
    yield _changed(lambda m: m.graph.node[0].input.__setitem__(1, "nothing"))
    yield _changed(lambda m: m.graph.node[0].input.__setitem__(0, ""))


def inputs_unused() -> Variants:
    for count in (1, 5, 500):

        def change(model: onnx.ModelProto, count: int = count) -> None:
            for i in range(count):
                model.graph.input.append(helper.make_tensor_value_info(f"u{i}", 1, ["k", 2]))

        yield _changed(change)


# Tensors.


def _tensor(**fields: Any) -> bytes:
    def change(model: onnx.ModelProto) -> None:
        tensor = model.graph.initializer[0]
        dims = fields.pop("dims", None)
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(tensor, name).extend(value)
            else:
                setattr(tensor, name, value)
        if dims is not None:
            tensor.dims[:] = dims

    return _changed(change)


def initializer_of_another_dtype() -> Variants:
    for kind in (0, 2, 6, 7, 8, 9, 10, 11, 14, 16, 17, 22, 23, 26, 27, 99, -1, 2**31 - 1):
        yield _tensor(data_type=kind)


def raw_data_of_another_length() -> Variants:
    for length in (0, 1, 63, 65, 128, 1 << 16):
        yield _tensor(raw_data=bytes(length))


def raw_and_typed_data() -> Variants:
    for name, value in (("float_data", 1.0), ("int64_data", 1), ("int32_data", 1), ("double_data", 1.0)):
        yield _tensor(**{name: [value] * 16})
        yield _tensor(**{name: [value] * 3})
    yield _tensor(string_data=[b"a"])


def packed_with_an_odd_count() -> Variants:
    for kind in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1, 25, 26):
        for count, nbytes in ((3, 1), (3, 2), (3, 3), (1, 0), (5, 2)):
            tensor = TensorProto(name="q", data_type=kind, dims=[count], raw_data=b"\x9a" * nbytes)
            model = build([node("y = Cast(q)", to=1)], [], ["y"], opset=23)
            model.graph.initializer.append(tensor)
            yield bytes(model.SerializeToString())


def _declared(*dims: Any) -> bytes:
    return _changed(lambda m: m.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, list(dims))))


def negative_dim() -> Variants:
    for dim in (-1, -4, -(2**31), -(2**63)):
        yield _tensor(dims=[dim, dim])
        yield _declared(dim, 4)
        yield _around("Reshape", {"s": np.array([dim, dim])})
        yield _around("ConstantOfShape", {"s": np.array([dim])}, ())


def zero_dim() -> Variants:
    yield _tensor(dims=[4, 0], raw_data=b"")
    yield _tensor(dims=[0, 4], raw_data=b"")
    yield _declared(0, 4)
    yield _declared("n", 0)
    for op in ("ReduceMax", "ReduceMean", "ReduceSum", "ReduceProd", "ReduceMin"):
        yield _around(op, {}, ("x f32[n,0]",))
    yield _around("ArgMax", {}, ("x f32[0,n]",), axis=0)
    yield _around("Softmax", {}, ("x f32[n,0]",))


HUGE = (2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1)


def dim_too_large() -> Variants:
    for dim in HUGE:
        yield _tensor(dims=[dim])
        yield _declared(dim, 4)
        yield _around("Expand", {"s": np.array([dim, 4])}, ("x f32[1,4]",))
        yield _around("ConstantOfShape", {"s": np.array([dim])}, ())
        yield _around("Tile", {"r": np.array([dim, 1])})
        yield _around("Pad", {"p": np.array([0, dim, 0, 0])})
        yield _around("EyeLike", {}, (f"x f32[{dim},{dim}]",))
        yield _around("OneHot", {"d": np.array(dim), "v": np.float32([0, 1])}, ("i i64[n]",))
        yield _around("Range", {"a": np.int64(0), "b": np.int64(dim), "c": np.int64(1)}, ())
        yield _around("SpaceToDepth", {}, ("x f32[1,1,2,2]",), blocksize=dim)
        yield _around("DepthToSpace", {}, ("x f32[1,4,2,2]",), blocksize=dim)


def product_too_large() -> Variants:
    for dims in ((2**32, 2**32), (2**62, 4), (2**63 - 1, 3), (2**21, 2**21, 2**22)):
        yield _tensor(dims=list(dims))
        yield _around("ConstantOfShape", {"s": np.array(dims)}, ())
        yield _around("Reshape", {"s": np.array(dims)})
        yield _around("Tile", {"r": np.array(dims[:2])})
        none = np.zeros(0, np.float32)
        yield _around("Resize", {"r": none, "f": none, "s": np.array((1, 1, *dims[:2]))}, ("x f32[1,1,2,2]",))


def rank_too_high() -> Variants:
    for rank in (9, 100, 1_000_000):
        yield _tensor(dims=[1] * rank)
        yield _around("Unsqueeze", {"a": np.arange(rank)})
        yield _around("Reshape", {"s": np.ones(rank, np.int64)}, ("x f32[1]",))
        yield _around("ConstantOfShape", {"s": np.ones(rank, np.int64)}, ())
        yield _around("Transpose", {}, perm=list(range(rank)))
        yield _declared(*[1] * min(rank, 100_000))


def scalar_for_a_vector() -> Variants:
    one = np.array(1, np.int64)
    for op, constants in (
        ("Reshape", {"s": one}), ("Tile", {"r": one}), ("Expand", {"s": one}), ("Pad", {"p": one}),
        ("Slice", {"a": one, "b": one}),
        ("Squeeze", {"a": one}), ("Unsqueeze", {"a": one}), ("TopK", {"k": one}), ("Split", {"s": one}),
        ("ReduceSum", {"a": one}), ("ConstantOfShape", {}), ("Gather", {"i": one}), ("MatMul", {"w": np.float32(1)}),
    ):  # fmt: skip
        yield _around(op, constants, _FLOATS if op != "ConstantOfShape" else ("s i64[]",))


# Operators and attributes.


def unknown_operator() -> Variants:
    for op in ("Foo", "", "relu", "\0", "a" * 100_000, "Relu ", "__class__", "If;"):
        yield _changed(lambda m, op=op: setattr(m.graph.node[1], "op_type", op))


def unknown_domain() -> Variants:
    for domain in ("acme", "com.microsoft", "ai.onnx.ml", " ", "..", "ai.onnx.preview.training"):
        yield _changed(lambda m, d=domain: setattr(m.graph.node[1], "domain", d))
        yield _changed(
            lambda m, d=domain: (setattr(m.graph.node[1], "domain", d), m.opset_import.add(domain=d, version=1))
        )


def opset_unknown() -> Variants:
    for version in (0, -1, 999, 2**31, 2**63 - 1):
        yield _changed(lambda m, v=version: setattr(m.opset_import[0], "version", v))
    yield _changed(lambda m: m.ClearField("opset_import"))
    yield _changed(lambda m: m.opset_import.add(version=11))
    yield _changed(lambda m: setattr(m, "ir_version", 2**40))


def attribute_of_another_type() -> Variants:
    for kind in range(15):

        def change(model: onnx.ModelProto, kind: int = kind) -> None:
            added = model.graph.node.add(op_type="Softmax", input=["x"], output=["z"]).attribute.add(name="axis", i=1)
            added.type = kind

        yield _changed(change)


def attribute_missing_or_twice() -> Variants:
    for op in ("Concat", "Cast", "LSTM", "DepthToSpace", "Einsum", "If", "Loop", "Scan"):
        yield _changed(lambda m, op=op: m.graph.node.add(op_type=op, input=["x"], output=["z"]))

        def change(model: onnx.ModelProto, op: str = op) -> None:
            added = model.graph.node.add(op_type=op, input=["x"], output=["z"])
            for _ in range(2):
                added.attribute.add(name="axis" if op == "Concat" else "to", type=AttributeProto.INT, i=1)

        yield _changed(change)


def attribute_not_a_number() -> Variants:
    for value in (np.nan, np.inf, -np.inf, 3e38):
        for op, name in (("LeakyRelu", "alpha"), ("Elu", "alpha"), ("Selu", "gamma"), ("HardSigmoid", "beta"),
                         ("ThresholdedRelu", "alpha"), ("LpNormalization", "p")):  # fmt: skip
            yield _around(op, {}, **{name: float(value) if name != "p" else 0})
        yield _around("LayerNormalization", {"s": np.ones(4, np.float32)}, epsilon=float(value))
        yield _around(
            "Resize", {"r": np.zeros(0, np.float32), "f": np.float32([1, 1, value, value])}, ("x f32[1,1,2,2]",)
        )


_IMAGE = ("x f32[1,4,8,8]",)
_WEIGHTS = {"w": np.ones((4, 4, 3, 3), np.float32)}
POOLS = ("MaxPool", "AveragePool", "LpPool")


def kernel_of_size_zero() -> Variants:
    for size in (0, -1, 2**31, 2**62):
        for op in POOLS:
            yield _around(op, {}, _IMAGE, kernel_shape=[size, size])
        yield _around("Conv", _WEIGHTS, _IMAGE, kernel_shape=[size, size])
    yield _around("Conv", {"w": np.ones((4, 4, 0, 0), np.float32)}, _IMAGE)
    yield _around("ConvTranspose", {"w": np.ones((4, 4, 0, 3), np.float32)}, _IMAGE)


def stride_zero() -> Variants:
    for stride in (0, -1, 2**31, 2**63 - 1):
        for name in ("strides", "dilations"):
            for op in ("MaxPool", "AveragePool"):
                yield _around(op, {}, _IMAGE, kernel_shape=[2, 2], **{name: [stride, stride]})
            yield _around("Conv", _WEIGHTS, _IMAGE, **{name: [stride, stride]})
            yield _around("ConvTranspose", _WEIGHTS, _IMAGE, **{name: [stride, stride]})
    for step in (0, -(2**63), 2**63 - 1):
        yield _around("Slice", {"a": np.array([0]), "b": np.array([4]), "c": np.array([0]), "d": np.array([step])})
        yield _around("Range", {"a": np.int64(0), "b": np.int64(4), "c": np.int64(step)}, ())


def group_that_does_not_divide() -> Variants:
    for group in (0, 3, -1, 5, 2**31, 2**63 - 1):
        yield _around("Conv", _WEIGHTS, _IMAGE, group=group)
        yield _around("ConvTranspose", _WEIGHTS, _IMAGE, group=group)
        yield _around("GroupNormalization", {"s": np.ones(4, np.float32), "b": np.ones(4, np.float32)}, _IMAGE,
                      opset=21, num_groups=group)  # fmt: skip


def pads_larger_than_the_input() -> Variants:
    for pad in (9, 1 << 20, -9, 2**31, 2**62, -(2**63)):
        yield _around("MaxPool", {}, _IMAGE, kernel_shape=[2, 2], pads=[pad] * 4)
        yield _around("AveragePool", {}, _IMAGE, kernel_shape=[2, 2], pads=[pad] * 4, count_include_pad=1)
        yield _around("Conv", _WEIGHTS, _IMAGE, pads=[pad] * 4)
        for mode in ("constant", "reflect", "edge", "wrap"):
            yield _around("Pad", {"p": np.array([pad, 0, 0, pad])}, opset=19, mode=mode)


def reshape_with_two_unknowns() -> Variants:
    for shape in ((-1, -1), (0, 0, 0), (-1, 0, -1), (-2, 4), (3, 7), (-1, 3), (0, -1, 0)):
        for allowzero in (0, 1):
            yield _around("Reshape", {"s": np.array(shape)}, allowzero=allowzero)


# Sizes.


def long_chain() -> Variants:
    for count in (1000, 100_000):
        names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
        nodes = b"".join(
            _field(1, _field(1, a.encode()) + _field(2, b.encode()) + _field(4, b"Relu"))
            for a, b in itertools.pairwise(names)
        )
        model = build([], list(_FLOATS), ["y"])
        yield bytes(model.SerializeToString()) + _field(7, nodes)


def many_readers() -> Variants:
    for count in (500, 100_000):
        nodes = b"".join(_field(1, _field(1, b"x") + _field(2, b"r%d" % i) + _field(4, b"Neg")) for i in range(count))
        yield _bytes() + _field(7, nodes)
        joined = helper.make_node("Concat", ["x"] * count, ["z"], axis=0)
        yield _changed(lambda m, joined=joined: m.graph.node.append(joined))


def sharing_that_doubles() -> Variants:
    for op in ("Add", "Concat", "Mul", "MatMul"):
        more = {"axis": 0} if op == "Concat" else {}
        for given in ("x f32[n,1]" if op != "MatMul" else "x f32[2,2]", "x f32[1]" if op != "MatMul" else "x f32[n,n]"):
            nodes = [helper.make_node(op, [f"v{i}"] * 2, [f"v{i + 1}"], **more) for i in range(60)]
            nodes[0].input[:], nodes[-1].output[:] = ["x", "x"], ["y"]
            yield bytes(build(nodes, [given], ["y"]).SerializeToString())
    model = _right()
    model.opset_import.add(domain="own", version=1)
    for i in range(40):  # a function that calls another one twice
        calls = [
            helper.make_node(f"F{i + 1}", ["p"], ["o"], domain="own"),
            helper.make_node(f"F{i + 1}", ["o"], ["q"], domain="own"),
        ]
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
        model.functions.append(
            helper.make_function("own", f"F{i}", ["p"], ["q"], calls if i < 39 else [node("q = Neg(p)")], opsets)
        )
    model.graph.node[1].CopyFrom(helper.make_node("F0", ["t"], ["y"], domain="own"))
    yield bytes(model.SerializeToString())


def _renamed(old: bytes, new: bytes) -> bytes:
    """The model with another name of a value; any bytes, as protobuf would not write them."""
    mark = b"mark"

    def change(model: onnx.ModelProto) -> None:
        model.graph.node[0].output[0] = model.graph.node[1].input[0] = "mark"

    data = _changed(change)
    return data if len(new) != len(mark) else data.replace(mark, new)


def long_name() -> Variants:
    name = "n" * (1 << 20)
    yield _changed(lambda m: setattr(m.graph.node[0], "name", name))
    yield _changed(lambda m: (m.graph.node[0].output.__setitem__(0, name), m.graph.node[1].input.__setitem__(0, name)))
    yield _changed(lambda m: setattr(m.graph, "name", name))
    yield _changed(lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", name))
    yield _changed(lambda m: m.metadata_props.add(key=name, value=name))


TEXTS = (
    "\0",
    "\n",
    "*/",
    '"',
    "\\",
    "\u202e",
    "\u2028",
    "%s%n",
    "{0}",
    "*/ __kernel",
    "<script>",
    "../..",
    "#define x",
)


def name_with_strange_letters() -> Variants:
    for text in TEXTS:
        yield _changed(lambda m, t=text: [setattr(n, "name", t) for n in m.graph.node])
        yield _changed(
            lambda m, t=text: (m.graph.node[0].output.__setitem__(0, t), m.graph.node[1].input.__setitem__(0, t))
        )
        yield _changed(lambda m, t=text: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", t))
    yield from (_renamed(b"mark", new) for new in (b"\xff\xfe\xfd\xfc", b"\xc3\x28ab", b"\xed\xa0\x80a"))


def empty_strings() -> Variants:
    for count in (10, 1_000_000):
        tensor = TensorProto(name="w", data_type=TensorProto.STRING, dims=[count])
        data = bytes(tensor.SerializeToString()) + _field(6, b"") * count
        yield _bytes() + _field(7, _field(5, data.replace(b"\x42\x01w", b"\x42\x01v")))
        yield _bytes() + _field(
            7,
            _field(
                1,
                _field(2, b"z")
                + _field(4, b"Constant")
                + _field(5, _field(1, b"value_strings") + _field(9, b"") * count),
            ),
        )


def outside_of_the_folder() -> Variants:
    for place in (*PLACES, "..\\secret", "/", "//etc/passwd", "folder/../../secret", "~/secret", "%2e%2e/secret"):
        model = in_files(random.Random(0)).model
        for entry in model.graph.initializer[0].external_data:
            if entry.key == "location":
                entry.value = place
        yield bytes(model.SerializeToString())


# Contents that operators rely on.


def division_by_zero() -> Variants:
    for kind in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        word = f"x {'u' if kind(0).dtype.kind == 'u' else 'i'}{kind(0).dtype.itemsize * 8}[n]"
        least = np.iinfo(kind).min
        for op in ("Div", "Mod"):
            yield _around(op, {"d": np.zeros(1, kind)}, (word,))
            yield _around(op, {"d": np.array([kind(0) if least == 0 else kind(-1)])}, (word,))
            whole = {"a": np.array([least, 1, 7], kind), "d": np.array([0 if least == 0 else -1, 0, 3], kind)}
            yield _around(op, whole, ())
        if least == 0:
            for way in ("LEFT", "RIGHT"):
                yield _around("BitShift", {"d": np.array([np.iinfo(kind).max])}, (word,), direction=way)
    for count in (0, -1):
        yield _around("Split", {}, opset=18, num_outputs=count)
        yield _around("TopK", {"k": np.array([count])})


def index_out_of_range() -> Variants:
    for index in (4, -5, 2**31, -(2**63), 2**63 - 1):
        at = np.array([[index]])
        yield _around("Gather", {"i": np.array([index])}, axis=1)
        yield _around("GatherElements", {"i": at}, axis=1)
        yield _around("GatherND", {"i": at})
        yield _around("ScatterElements", {"i": at, "u": np.ones((1, 1), np.float32)}, axis=1)
        yield _around("ScatterND", {"i": at, "u": np.ones((1, 4), np.float32)})
        yield _around("OneHot", {"d": np.array(3), "v": np.float32([0, 1])}, ("i i64[n]",), axis=min(index, 2**31))
        yield _around("ReduceSum", {"a": np.array([index])})
        yield _around("Squeeze", {"a": np.array([index])})
        yield _around("CumSum", {"a": np.array(index)})


def endless_loop() -> Variants:
    for count in (2**63 - 1, None, -1):
        parts = {"go": helper.make_node("Constant", [], ["on"], value=numpy_helper.from_array(np.array(True)))}
        types = [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("c", 9, []),
                 helper.make_tensor_value_info("v", 1, ["k", 4])]  # fmt: skip
        ends = [helper.make_tensor_value_info("on", 9, []), helper.make_tensor_value_info("w", 1, ["k", 4])]
        body = helper.make_graph([parts["go"], helper.make_node("Neg", ["v"], ["w"])], "b", types, ends)
        trip = "m" if count is not None else ""
        constants = {"m": np.array(count or 0), "c": np.array(True)}
        loop = helper.make_node("Loop", [trip, "c", "x"], ["y"], body=body)
        yield bytes(build([loop], list(_FLOATS), ["y"], constants).SerializeToString())


CLASSES: tuple[Callable[[], Variants], ...] = (
    empty_file, truncated, bytes_flipped, number_too_long, length_beyond_the_end, unknown_fields, nested, groups,
    more_declared_than_there_is, node_names_twice, outputs_twice, cycle, self_loop, cycle_of_functions,
    cycle_through_a_branch, input_missing, inputs_unused, initializer_of_another_dtype, raw_data_of_another_length,
    raw_and_typed_data, packed_with_an_odd_count, negative_dim, zero_dim, dim_too_large, product_too_large,
    rank_too_high, scalar_for_a_vector, unknown_operator, unknown_domain, opset_unknown, attribute_of_another_type,
    attribute_missing_or_twice, attribute_not_a_number, kernel_of_size_zero, stride_zero, group_that_does_not_divide,
    pads_larger_than_the_input, reshape_with_two_unknowns, long_chain, many_readers, sharing_that_doubles, long_name,
    name_with_strange_letters, empty_strings, outside_of_the_folder, division_by_zero, index_out_of_range, endless_loop,
)  # fmt: skip


@functools.cache
def corpus() -> list[tuple[str, bytes]]:
    """Return every model, with the name of its class."""
    return [(make.__name__, data) for make in CLASSES for data in make()]


def draw(seed: int, device: str, place: Place) -> Case:
    """Return the case of a number: the models one after the other, on a kind of devices."""
    what, data = corpus()[seed % len(corpus())]
    source: Any = data
    if what == outside_of_the_folder.__name__:
        source = place.models / "it.onnx"
        source.write_bytes(data)
    on = device if device == "opencl" else ("host", "simulated")[seed % 2]
    options = RuntimeOptions(
        memory_limit=LIMITS[on], max_model_bytes=8 << 20, max_nodes=MAX_NODES, warm=False, cache_dir=place.cache
    )
    return Case(seed, Origin(what, onnx.ModelProto(), {}), source, [what], on, options)


async def ask_once(case: Case, place: Place) -> None:
    """Load and run once: what `models.attack` does without asking again, and without neighbours."""
    async with Runtime(opened(case.device, case.seed, place.clock), options=case.options) as rt:
        loaded = await expecting(rt.load(case.source), case)
        if loaded is not None:
            inputs = fitting(loaded.inputs, {}, random.Random(case.seed))
            outputs = await expecting(loaded.infer(inputs, deadline=DEADLINE_S), case)
            if outputs is not None:
                case.ended = "ran"
                case.ran.append((inputs, outputs))
