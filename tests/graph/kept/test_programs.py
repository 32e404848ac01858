"""A program that was kept is the one that would be made, and where anything is different none is found."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import onnx
import pytest
from onnx import helper

from asyncrt import Runtime, RuntimeOptions
from asyncrt.errors import ModelFormatError
from asyncrt.graph import build
from asyncrt.graph.ir import Graph, Program, ProgramNode, Subgraph
from asyncrt.graph.kept import dependencies as depends
from asyncrt.graph.kept import programs
from asyncrt.graph.kept.dependencies import OPTIONS, USED, dependencies
from asyncrt.graph.kept.pickled import Unkept, pickled, unpickled
from asyncrt.graph.kept.programs import find_program
from asyncrt.graph.reading.source import bytes_of, likeness
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.resident.store import BinaryStore
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array
from asyncrt.mechanisms import Mechanism
from asyncrt.memory.paged import mapping_of

from ...builders import model, node
from ...environment import with_sources

TRAITS = DeviceTraits()
W = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
SMALL = np.arange(8, dtype=np.float32)

PRODUCT = model(
    [node("a = MatMul(x, w)"), node("b = Mul(a, s)"), node("c = Sigmoid(b)"), node("y = Mul(b, c)")],
    ["x f32[n,64]"], ["y"], {"w": W, "s": np.float32(0.5)},
)  # fmt: skip
"""Of which a mapped tensor stays in the file, and whose last nodes are fused."""


def loop() -> onnx.ModelProto:
    """A model with control flow: a graph inside a node, which captures a value."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["v", "w"], ["u"])],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, ["n", 8]),
        ],
        [
            helper.make_tensor_value_info("d", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, ["n", 8]),
        ],
    )
    made = model([node("y = Neg(x)")], ["x f32[n,8]", "t i64[]"], ["y"], {"w": SMALL})
    made.graph.node[0].CopyFrom(helper.make_node("Loop", ["t", "", "x"], ["y"], body=body))
    return made


def decided() -> onnx.ModelProto:
    """A model whose branch a small input decides, and that calculates with shapes."""
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["x"], [out])],
            name,
            [],
            [helper.make_tensor_value_info(out, onnx.TensorProto.FLOAT, ["n", 8])],
        )
        for name, op, out in (("then_branch", "Exp", "a"), ("else_branch", "Neg", "b"))
    }
    made = model(
        [node("z = Neg(x)"), node("s = Shape(x)"), node("r = Concat(s, one)", axis=0), node("y = Reshape(z, r)")],
        ["x f32[n,8]", "t bool[]"], ["y"], {"one": np.array([1])},
    )  # fmt: skip
    made.graph.node[0].CopyFrom(helper.make_node("If", ["t"], ["z"], **branches))
    return made


def quantised() -> onnx.ModelProto:
    """A model of which products of integers are made, and a table."""
    nodes = [
        node("q = QuantizeLinear(x, s, z)"), node("d = DequantizeLinear(q, s, z)"), node("e = DequantizeLinear(w, s)"),
        node("m = MatMul(d, e)"), node("r = QuantizeLinear(m, t, z)"), node("u = DequantizeLinear(r, t, z)"),
        node("a = Sigmoid(u)"), node("b = QuantizeLinear(a, s, z)"), node("c = Unsqueeze(b, last)"),
        node("f = DequantizeLinear(c, s, z)"), node("g = DequantizeLinear(k, s)"), node("h = Conv(f, g)"),
        node("y = QuantizeLinear(h, t, z)"),
    ]  # fmt: skip
    constants = {
        "w": (W[:8, :16] * 50).astype(np.int8), "k": (W[:8, :16, None] * 50).astype(np.int8), "s": np.float32(0.02),
        "t": np.float32(0.3), "z": np.uint8(100), "last": np.array([2]),
    }  # fmt: skip
    return model(nodes, ["x f32[n,8]"], ["y"], constants, opset=17)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "product": lambda: PRODUCT, "loop": loop, "decided": decided, "quantised": quantised,
}  # fmt: skip


def written(source: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(source.SerializeToString())
    return path


def plain(thing: Any, seen: dict[int, int]) -> Any:
    """Return all that a program is as values that can be compared; what was met before by its number."""
    if isinstance(thing, np.ndarray):
        bytes_ = tuple(map(repr, thing.reshape(-1))) if thing.dtype.kind == "O" else thing.tobytes()
        return "array", str(thing.dtype), thing.shape, bytes_
    if isinstance(thing, Operator):
        return thing.name, thing.domain, thing.declared, thing.value_hints, thing.by_evaluator
    if isinstance(thing, Program | ProgramNode | Graph | Subgraph):
        if id(thing) in seen:
            return "seen", seen[id(thing)]
        seen[id(thing)] = len(seen)
    if attrs.has(type(thing)):
        names = [field.name for field in attrs.fields(type(thing)) if field.name != "fresh"]
        return type(thing).__name__, [(name, plain(getattr(thing, name), seen)) for name in names]
    if isinstance(thing, dict):
        opset = (getattr(thing, "opset", None), getattr(thing, "outputs", None))
        return [(plain(k, seen), plain(v, seen)) for k, v in thing.items()], opset
    if isinstance(thing, frozenset):
        return sorted(map(repr, thing))
    if isinstance(thing, tuple | list):
        return [plain(each, seen) for each in thing]
    return repr(thing).partition(" at 0x")[0]


class Loader:
    """Loads models as processes do one after the other, and counts how many were made."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.made = BinaryStore(folder / "kept"), 0
        make = build.build_program

        def counted(*arguments: Any) -> Program:
            self.made += 1
            return make(*arguments)

        monkeypatch.setattr(build, "build_program", counted)

    def __call__(
        self, source: Any, options: RuntimeOptions | None = None, traits: DeviceTraits = TRAITS, known: str = ""
    ) -> Program:
        options = options or RuntimeOptions()
        found = find_program(source, known or likeness(source, options), traits, options, self.store)
        if found.keep is not None:
            found.keep()
        return found.program

    def made_for(self, *arguments: Any, **options: Any) -> int:
        """Load a model, and return how many were made for it."""
        before = self.made
        self(*arguments, **options)
        return self.made - before


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    return Loader(tmp_path, monkeypatch)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_program_that_was_kept_is_the_one_that_was_made(
    make: Callable[[], onnx.ModelProto], as_bytes: bool, load: Loader, tmp_path: Path
) -> None:
    """In every field: the order of nodes, what is fused, tensors, formulas, and which things are the same thing."""
    path = written(make(), tmp_path / "m.onnx")
    source = path.read_bytes() if as_bytes else path

    made, kept = load(source), load(source)

    assert load.made == 1
    assert plain(kept, {}) == plain(made, {})


def test_a_quantised_model_has_operators_that_passes_alone_make(load: Loader) -> None:
    """So that the model among those above is one."""
    nodes = load(quantised().SerializeToString()).nodes
    operators = {part.operator.name for node in nodes for part in node.parts or [node]}

    assert {"MatMulScaled", "ByteTable", "ConvScaled"} <= operators


@pytest.mark.asyncio
async def test_the_next_runtime_finds_what_a_model_became(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the same results bit for bit. A runtime is closed when all is written, also if it was closed at once."""
    load = Loader(tmp_path, monkeypatch)
    path = written(PRODUCT, tmp_path / "m.onnx")
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    outputs: list[Array] = []
    for _ in range(2):
        async with Runtime(options=RuntimeOptions(cache_dir=tmp_path / "kept")) as rt:
            loaded = await rt.load(path)
            outputs.append((await loaded.infer({"x": x}))["y"])

    assert load.made == 1
    np.testing.assert_array_equal(*outputs)


OTHER_OPTIONS = [
    RuntimeOptions(without={"fuse"}), RuntimeOptions(precision="bf16"), RuntimeOptions(max_folded_bytes=1 << 10),
    RuntimeOptions(memory_limit=1 << 26), RuntimeOptions(max_rank=4),
]  # fmt: skip


def test_what_it_was_made_for_counts(load: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other options, another device, other code: each has a program of its own, though the model seems the same."""
    path = written(PRODUCT, tmp_path / "m.onnx")

    assert [load.made_for(path, known="m") for _ in range(2)] == [1, 0]
    assert [load.made_for(path, options, known="m") for options in OTHER_OPTIONS] == [1] * len(OTHER_OPTIONS)
    for traits in (DeviceTraits(compute_units=3), DeviceTraits(features=frozenset({"fp64", "fp16"}))):
        assert [load.made_for(path, traits=traits, known="m") for _ in range(2)] == [1, 0]
    assert load.made_for(path, known="m") == 0

    monkeypatch.setattr(depends, "_code", lambda: "other code")
    assert load.made_for(path, known="m") == 1


def test_one_bit_of_a_weight_counts(load: Loader, tmp_path: Path) -> None:
    """A model that seems the same, by its size and both ends, is another one; each is found while it is the last."""
    path = written(PRODUCT, tmp_path / "m.onnx")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    other = bytes(data)

    first = load(path, known="m")
    second = load(other, known="m")

    assert load.made == 2
    assert not np.array_equal(*(p.values[p.device_constants[0]].constant for p in (first, second)))
    assert load.made_for(other, known="m") == 0
    assert load.made_for(path, known="m") == 1


def test_reading_and_passes_ask_for_no_other_options() -> None:
    """Those that a key names; whoever adds one to the passes is told here."""
    asked: set[str] = set()
    used: set[str] = set()

    class Asked:
        def __init__(self, options: RuntimeOptions) -> None:
            self._options = options

        def __getattr__(self, name: str) -> Any:
            asked.add(name)
            return getattr(self._options, name)

        def uses(self, name: Mechanism) -> bool:
            used.add(name)
            return self._options.uses(name)

    for make in MODELS.values():
        for options in (RuntimeOptions(), *OTHER_OPTIONS):
            given: Any = Asked(options)
            build.build_program(make().SerializeToString(), TRAITS, given)

    assert {"precision"} <= asked <= {*OPTIONS, "cache_dir"}
    assert used == set(USED)


def test_every_trait_of_the_device_counts() -> None:
    """A text says each of them."""
    said = dependencies(TRAITS, RuntimeOptions())

    assert said is not None
    for field in attrs.fields(DeviceTraits):
        assert f"'{field.name}'" in said
    other = attrs.evolve(TRAITS, features=frozenset({"a", "b"}))
    assert dependencies(other, RuntimeOptions()) == dependencies(
        attrs.evolve(TRAITS, features=frozenset({"b", "a"})), RuntimeOptions()
    )


def test_a_module_that_was_changed_counts(tmp_path: Path) -> None:
    """Its size, its time and its name; what Python has compiled does not."""
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    module = package / "inner" / "a.py"
    module.write_text("x = 1\n")
    os.utime(module, (1000, 1000))

    def said() -> list[str]:
        return list(depends._modules(package))  # noqa: SLF001  # what a key is a digest of

    before = said()
    (package / "inner" / "__pycache__").mkdir()
    (package / "inner" / "__pycache__" / "a.py").write_text("")
    assert said() == before
    os.utime(module, (1001, 1001))
    assert said() != before
    os.utime(module, (1000, 1000))
    module.rename(package / "inner" / "b.py")
    assert said() != before


def test_code_in_no_files_keeps_nothing(load: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an archive: nobody could tell whether it is the same."""
    monkeypatch.setattr(depends, "__file__", str(tmp_path / "archive.zip" / "asyncrt" / "graph" / "kept" / "d.py"))
    depends._code.cache_clear()  # noqa: SLF001
    monkeypatch.setattr(depends, "_code", depends._code.__wrapped__)  # noqa: SLF001
    path = written(PRODUCT, tmp_path / "m.onnx")

    assert [load.made_for(path) for _ in range(2)] == [1, 1]


def entries(store: BinaryStore, begin: str) -> Iterator[Path]:
    """Where entries lie whose key begins so."""
    for path in store.folder.glob("*.bin"):
        if path.read_bytes().split(b"\n", 2)[1].startswith(begin.encode()):
            yield path


@pytest.mark.parametrize("begin", ["program of", "constants "])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_what_is_damaged_is_not_found(begin: str, damage: str, load: Loader, tmp_path: Path) -> None:
    """The model is read again, and what it becomes kept again."""
    path = written(decided(), tmp_path / "m.onnx")
    load(path)
    (entry,) = entries(load.store, begin)
    data = entry.read_bytes()
    if damage == "gone":
        entry.unlink()
    else:
        entry.write_bytes(data[:-1] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))

    assert [load.made_for(path) for _ in range(2)] == [1, 0]


def test_a_pickle_names_nothing_of_other_packages(load: Loader, tmp_path: Path) -> None:
    """Whole entries that ask for anything else, or are no program, are not found; nothing is called."""
    path = written(PRODUCT, tmp_path / "m.onnx")
    load(path)
    (entry,) = entries(load.store, "program of")
    key = entry.read_bytes().split(b"\n", 2)[1].decode()
    kept = load.store.get(key)
    assert kept is not None
    called = tmp_path / "called"

    class Calls:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(called),)

    for says in (pickle.dumps(Calls()), pickle.dumps(([], pickle.dumps("no program"))), b"", b"no pickle"):
        load.store.put(key, kept[: 2 * 32] + says)
        assert load.made_for(path) == 1
    assert not called.exists()
    data = bytes_of(path, RuntimeOptions()).data
    with pytest.raises(Unkept, match="cannot be read"):
        unpickled(pickle.dumps(Calls()), data, data)


def test_tensors_of_other_files_are_not_kept(load: Loader, tmp_path: Path) -> None:
    """A digest of the model does not say whether they are the same."""
    source = onnx.ModelProto()
    source.CopyFrom(PRODUCT)
    onnx.save(source, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=1024)

    assert [load.made_for(tmp_path / "m.onnx") for _ in range(2)] == [1, 1]
    assert list(load.store.folder.iterdir()) == []


def test_operators_of_no_module_are_not_kept(load: Loader) -> None:
    """Such as those that onnx's own evaluator carries out."""
    source = model([node("y = Neg(x)")], ["x f32[n,8]"], ["y"])
    program = load(source.SerializeToString())
    stranger = attrs.evolve(program.nodes[0].operator)
    program.nodes[0].operator = stranger

    with pytest.raises(Unkept, match="no operator of a module"):
        pickled(program, np.empty(0, np.uint8))


@pytest.mark.parametrize("cut_short", [False, True])
def test_a_file_that_was_written_to_meanwhile_is_not_kept(cut_short: bool, load: Loader, tmp_path: Path) -> None:
    """What its program was made of is not what a digest of it would say; and what was cut off is not looked at."""
    path = written(PRODUCT, tmp_path / "m.onnx")
    options = RuntimeOptions()
    found = find_program(path, "m", TRAITS, options, load.store)
    assert found.keep is not None
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.truncate() if cut_short else file.write(b"\0")
    os.utime(path, (1, 1))

    found.keep()

    assert list(load.store.folder.iterdir()) == []


def test_errors_are_those_of_loading(load: Loader, tmp_path: Path) -> None:
    """A file that is no model, or none at all, is told as ever, and nothing is kept."""
    (tmp_path / "m.onnx").write_bytes(b"no model" * 100)

    with pytest.raises(ModelFormatError, match="not an ONNX model"):
        load(tmp_path / "m.onnx")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.onnx", known="m")
    assert list(load.store.folder.iterdir()) == []


def test_who_does_without_keeps_and_finds_nothing(load: Loader, tmp_path: Path) -> None:
    """Nor does who does without files altogether."""
    path = written(PRODUCT, tmp_path / "m.onnx")
    load(path)
    size = sum(1 for _ in load.store.folder.iterdir())

    assert load.made_for(path, RuntimeOptions(without={"kept_programs"})) == 1
    assert load.made_for(path, RuntimeOptions(without={"disk_cache"})) == 1
    assert sum(1 for _ in load.store.folder.iterdir()) == size


def test_constants_are_where_those_of_a_program_that_was_made_are(load: Loader, tmp_path: Path) -> None:
    """Large ones that were calculated lie in a file of which the system keeps what is used, or in memory."""
    source = model([node("v = Add(w, w)"), node("y = MatMul(x, v)")], ["x f32[n,64]"], ["y"], {"w": W})
    path = written(source, tmp_path / "m.onnx")
    for options, paged in ((RuntimeOptions(), True), (RuntimeOptions(without={"page_constants"}), False)):
        load(path, options)

        kept = load(path, options)

        (constant,) = (v.constant for v in kept.values if v.constant is not None and v.constant.nbytes == W.nbytes)
        np.testing.assert_array_equal(constant, W + W)
        assert (mapping_of(constant) is not None) == paged
    assert load.made == 2


def test_large_models_are_not_kept(load: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To go through them takes longer than to load them."""
    path = written(PRODUCT, tmp_path / "m.onnx")
    monkeypatch.setattr(programs, "_MOST", path.stat().st_size - 1)

    assert [load.made_for(path) for _ in range(2)] == [1, 1]


PROCESS = """
import asyncio, sys
from pathlib import Path
import numpy as np
import asyncrt

async def main():
    async with asyncrt.Runtime(options=asyncrt.RuntimeOptions(cache_dir=Path(sys.argv[2]))) as rt:
        loaded = await rt.load(sys.argv[1])
        y = (await loaded.infer({"x": np.ones((2, 64), np.float32)}))["y"]
        print(float(y.sum()), "onnx" in sys.modules, "asyncrt.graph.importer" in sys.modules)
        await loaded.ready()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_process_that_finds_a_program_imports_no_onnx(tmp_path: Path) -> None:
    """Nor what reads a model; both take a good part of the time to its first answer."""
    path = written(PRODUCT, tmp_path / "m.onnx")
    command = [sys.executable, "-c", PROCESS, str(path), str(tmp_path / "kept")]

    said = [
        subprocess.run(
            command, env=with_sources(), capture_output=True, text=True, check=True, timeout=120
        ).stdout.split()
        for _ in range(2)
    ]

    assert said[0][1:] == ["True", "True"]
    assert said[1][1:] == ["False", "False"]


@pytest.mark.slow
def test_who_warms_a_folder_keeps_the_program_for_those_who_load_the_model(tmp_path: Path) -> None:
    """The command waits for kernels, and does without what others have; they find all that it has left."""
    path, folder = written(PRODUCT, tmp_path / "m.onnx"), str(tmp_path / "kept")
    told = {"env": with_sources(), "capture_output": True, "text": True, "check": True, "timeout": 120}

    subprocess.run([sys.executable, "-m", "asyncrt", "warm", str(path), "--cache-dir", folder], **told)
    said = subprocess.run([sys.executable, "-c", PROCESS, str(path), folder], **told).stdout.split()

    assert said[1:] == ["False", "False"]
