"""Tensors that stay in the model's files: what that costs, and what may happen to the files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import ModelFormatError, Runtime, RuntimeOptions
from asyncrt.graph.ir import Program
from asyncrt.graph.reading import mapped
from asyncrt.graph.reading.mapped import check, file_of, map_file, with_memory
from asyncrt.kernels.resident import weights
from asyncrt.layout import Array
from asyncrt.memory.paged import forget, mapping_of, pages_of

from ..builders import model, node
from ..paths import off
from ..zoo import ZooModel, some, zoo
from .models import compute, program

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="files are mapped where owners and pages are known")
#: Those with most to read, of all kinds of networks.
MODELS = {m.name: m for m in sorted(zoo(), key=lambda m: m.path.stat().st_size)[-6:]}
ROWS, COLUMNS = 300, 200
W = np.random.default_rng(1).standard_normal((ROWS, COLUMNS), np.float32)


def written(source: onnx.ModelProto, path: Path, mode: int = 0o644) -> Path:
    """A model in a file of its own."""
    path.write_bytes(source.SerializeToString())
    path.chmod(mode)
    return path


def product(**constants: Array) -> onnx.ModelProto:
    """A product with one large constant and a small bias."""
    bias = np.arange(COLUMNS, dtype=np.float32)
    nodes = [node("p = MatMul(x, w)"), node("y = Add(p, b)")]
    return model(nodes, [f"x f32[rows,{ROWS}]"], ["y"], {"w": W, "b": bias} | constants)


def files(built: Program) -> Mapping[str, Path]:
    """Which constants are parts of which files."""
    found = ((v.name, file_of(v.constant)) for v in built.values if v.constant is not None)
    return {name: file.path for name, file in found if file is not None}


def test_large_tensors_of_a_file_stay_there(tmp_path: Path) -> None:
    """Small ones are read, and everything is where nothing is mapped."""
    path = written(product(), tmp_path / "m.onnx")

    assert files(program(path)) == {"w": path}
    assert files(program(path, RuntimeOptions(without={"map_files"}))) == {}


def test_large_tensors_beside_a_file_stay_there(tmp_path: Path) -> None:
    """External data is mapped as the model is, once for all tensors."""
    path, data = tmp_path / "m.onnx", tmp_path / "m.data"
    onnx.save(product(), path, save_as_external_data=True, location=data.name, size_threshold=0)
    data.chmod(0o644)

    built = program(path)

    assert files(built) == {"w": data}
    (w,) = (v.constant for v in built.values if v.name == "w")
    assert w is not None
    np.testing.assert_array_equal(w, W)


def test_a_model_of_given_bytes_has_one_file_open() -> None:
    """However many large tensors it has: a process may have few files open, and many models."""
    nodes = [node(f"y{i} = MatMul(x, w{i})") for i in range(9)]
    weights = {f"w{i}": W + i for i in range(9)}
    data = model(nodes, [f"x f32[m,{ROWS}]"], [f"y{i}" for i in range(9)], weights).SerializeToString()

    built = program(data)

    constants = [v.constant for v in built.values if v.constant is not None]
    assert len({id(mapping_of(c)) for c in constants if pages_of(c) is not None}) == 1
    assert sum(pages_of(c) is not None for c in constants) == 9


@pytest.mark.parametrize("paged", [True, False])
def test_tensors_of_given_bytes_are_not_copied_in_memory(paged: bool) -> None:
    """They are in a file of their own, so that the bytes may go, or are parts of these bytes."""
    data = product().SerializeToString()

    built = program(data, RuntimeOptions(without=off(page_constants=paged)))
    (w,) = (v.constant for v in built.values if v.name == "w")

    assert w is not None
    assert (pages_of(w) is not None) == paged
    assert np.shares_memory(w, np.frombuffer(data, np.uint8)) == (not paged)
    np.testing.assert_array_equal(w, W)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_may_write_to_is_read(mode: int, tmp_path: Path) -> None:
    """They could cut it off, which would end this process."""
    path = written(product(), tmp_path / "m.onnx", mode)

    assert files(program(path)) == {}


def test_a_file_of_somebody_else_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner may write to it; root is trusted."""
    path = written(product(), tmp_path / "m.onnx")
    really, owner = os.fstat, [12345]

    def fstat(descriptor: int) -> os.stat_result:
        fields = list(really(descriptor))
        fields[4] = owner[0]
        return os.stat_result(fields)

    monkeypatch.setattr("asyncrt.graph.reading.mapped.os.fstat", fstat)
    others = map_file(path)
    owner[0] = 0

    assert others is None
    assert map_file(path) is not None


def test_what_the_host_looks_at_has_memory(tmp_path: Path) -> None:
    """An output of the model, and the shape of a Reshape, large as it may be."""
    table = np.arange(40_000, dtype=np.int64).reshape(200, 200)
    nodes = [node("p = MatMul(x, w)"), node("y = Gather(t, i)")]
    source = model(nodes, [f"x f32[rows,{ROWS}]", "i i64[n]"], ["p", "y", "o"], {"w": W, "t": table, "o": table})
    path = written(source, tmp_path / "m.onnx")

    assert set(files(program(path))) == {"w", "t"}


@pytest.mark.parametrize("shift", range(8))
def test_sums_of_what_lies_anywhere_are_the_same(shift: int, tmp_path: Path) -> None:
    """NumPy adds in another order where an array does not begin at a multiple of its elements' size."""
    w = np.random.default_rng(2).standard_normal((1, 300_000), np.float32)
    nodes = [node("s = ReduceSum(w)", keepdims=0), node("y = Add(x, s)")]
    source = model(nodes, ["x f32[n]"], ["y"], {"w": w})
    source.doc_string = "d" * shift
    path = written(source, tmp_path / "m.onnx")
    given = {"x": np.zeros(1, np.float32)}

    (here,), (there,) = (compute(program(path, RuntimeOptions(without=w)), given) for w in ((), {"map_files"}))

    assert here.tobytes() == there.tobytes()


def test_what_loading_calculates_is_put_into_a_file(tmp_path: Path) -> None:
    """And what came without one. Where there is no cache on disk, or none is wanted, it stays in memory."""
    nodes = [node("v = Mul(w, two)"), node("y = MatMul(x, v)")]
    source = model(nodes, [f"x f32[rows,{ROWS}]"], ["y"], {"w": W, "two": np.array(2, np.float32)})
    cases: list[tuple[Any, dict[str, Any], bool]] = [
        (written(source, tmp_path / "m.onnx"), {}, True),
        (source, {}, True),
        (source, {"without": {"page_constants"}}, False),
        (source, {"without": {"disk_cache"}}, False),
        (source, {"cache_dir": tmp_path / "missing"}, False),
    ]

    for given, options, expected in cases:
        built = program(given, RuntimeOptions(**{"cache_dir": tmp_path, **options}))

        (found,) = (v.constant for v in built.values if v.constant is not None and v.constant.nbytes == W.nbytes)
        assert (pages_of(found) is not None) == expected
        np.testing.assert_array_equal(found, W * 2)


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells what is resident in /proc")
@pytest.mark.asyncio
async def test_of_a_table_of_embeddings_only_rows_that_were_wanted_are_in_memory(tmp_path: Path) -> None:
    """Neither in the model's file nor on the device the table is there as a whole."""
    table = np.arange(1 << 24, dtype=np.float32).reshape(1 << 14, 1 << 10)
    source = model([node("y = Gather(t, i)")], ["i i64[n]"], ["y"], {"t": table})
    path = written(source, tmp_path / "m.onnx")
    async with Runtime(options=RuntimeOptions(cache_dir=tmp_path / "cache")) as rt:
        loaded = await rt.load(path)
        (y,) = (await loaded.infer({"i": np.array([3, 16000])})).values()

        if not rt.info.shares_memory:
            pytest.skip("its memory is its own")
        assert rt.statistics().weights.nbytes == table.nbytes
        assert resident(path) <= 4 << 20  # where tags are, systems read ahead
        assert resident(tmp_path / "cache") <= 16 << 20
    np.testing.assert_array_equal(y, table[[3, 16000]])


@pytest.mark.asyncio
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("shared_programs")
async def test_results_are_the_same_wherever_tensors_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: all tensors in the model's file, in given bytes, or in memory; those that loading calculates, and
    those that kernels read, in files of their own or not; and with constants that leave and come again."""
    monkeypatch.setattr(mapped, "LEAST", 1)
    monkeypatch.setattr(weights, "_PAGED", 1)
    spec: ZooModel = MODELS[name]
    path = tmp_path / "m.onnx"
    path.write_bytes(spec.path.read_bytes())
    path.chmod(0o600)
    given = [spec.inputs(case) for case in range(spec.cases)]
    variants: list[tuple[Any, dict[str, Any]]] = [
        (path, {}),
        (path, {"without": {"map_files", "page_constants"}}),
        (path, {"without": {"page_constants"}}),
        (path.read_bytes(), {"without": {"map_files"}}),
        (path.read_bytes(), {"without": {"page_constants"}}),
        (path, {"weights_bytes": 1, "plan_bytes": 1}),
    ]

    turn = list(MODELS).index(name) % 2
    results = []
    for source, options in (variants[0], *some(variants[1:], 2, turn)):
        async with Runtime(options=RuntimeOptions(**options)) as rt:
            loaded = await rt.load(source)
            results.append([{k: a.tobytes() for k, a in (await loaded.infer(g)).items()} for g in given])

    assert all(result == results[0] for result in results)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", "host", None], ids=lambda d: d or "opencl")
@pytest.mark.parametrize("what", ["deleted", "replaced"])
async def test_a_file_that_is_gone_goes_on_serving(what: str, device: str | None, tmp_path: Path) -> None:
    """Deleted, or another in its place: the model stays what was loaded, also where its constants are brought again."""
    path = written(product(), tmp_path / "m.onnx")
    x = np.random.default_rng(3).standard_normal((2, ROWS), np.float32)
    async with Runtime(device, options=RuntimeOptions(weights_bytes=1, warm=False)) as rt:
        loaded = await rt.load(path)
        if what == "deleted":
            path.unlink()
        else:
            written(product(w=W * 2), tmp_path / "new.onnx").replace(path)

        first = (await loaded.infer({"x": x}))["y"]

    np.testing.assert_allclose(first, x @ W + np.arange(COLUMNS, dtype=np.float32), rtol=1e-4, atol=1e-4)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", "host", None], ids=lambda d: d or "opencl")
@pytest.mark.parametrize("what", ["changed", "cut short"])
async def test_a_file_that_is_written_to_is_an_error_and_never_a_wrong_result(
    what: str, device: str | None, tmp_path: Path
) -> None:
    """Who needs its tensors again is told; nothing of the new content is used, and the process lives."""
    path = written(product(), tmp_path / "m.onnx")
    x = np.ones((2, ROWS), np.float32)
    async with Runtime(device, options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(path)
        with path.open("r+b") as file:
            if what == "changed":
                file.write(written(product(w=W * 2), tmp_path / "other.onnx").read_bytes())
            else:
                file.truncate(100)
        os.utime(path, ns=(1, 1))  # clocks of file systems are coarse

        with pytest.raises(ModelFormatError, match="was written to while"):
            await loaded.infer({"x": x})

        assert rt.statistics().weights.nbytes <= 4 * COLUMNS  # the bias, which was read when the model was loaded


@pytest.mark.asyncio
async def test_a_file_that_is_written_to_while_a_tensor_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read may be of the old and of the new; it does not stay on the device."""
    path = written(product(), tmp_path / "m.onnx")
    forgotten: list[Array] = []

    def forget_late(array: Array) -> None:
        forgotten.append(array)
        os.utime(path, ns=(1, 1))

    monkeypatch.setattr(mapped, "forget", forget_late)
    async with Runtime("host", options=RuntimeOptions(warm=False, without={"packed_weights"})) as rt:
        loaded = await rt.load(path)

        with pytest.raises(ModelFormatError, match="was written to while"):
            await loaded.infer({"x": np.ones((2, ROWS), np.float32)})

        assert any(a.nbytes == W.nbytes for a in forgotten)
        assert rt.statistics().weights.nbytes <= 4 * COLUMNS


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells what is resident in /proc")
@pytest.mark.asyncio
async def test_a_loaded_model_takes_the_memory_of_its_file_only_once(tmp_path: Path) -> None:
    """On the device: what was read of the file to bring it there is given back."""
    w = np.random.default_rng(4).standard_normal((1024, 1024), np.float32)
    path = written(
        model([node("y = MatMul(x, w)")], ["x f32[rows,1024]"], ["y"], {"w": w}), tmp_path / "resident.onnx"
    )
    async with Runtime() as rt:
        loaded = await rt.load(path)
        await loaded.infer({"x": np.ones((1, 1024), np.float32)})

        assert rt.statistics().weights.nbytes >= w.nbytes
        assert resident(path) <= 64 << 10


def resident(path: Path) -> int:
    """How many bytes of a mapped file, or of those in a folder, this process has in memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split()
        if not word[0].endswith(":"):
            inside = str(path) in line
        elif inside and word[0] == "Rss:":
            found += int(word[1]) * 1024
    return found


def test_what_is_forgotten_is_read_again(tmp_path: Path) -> None:
    """Whole pages are given back, and no byte is another afterwards."""
    path = tmp_path / "data"
    path.write_bytes(bytes(range(256)) * 1024)
    path.chmod(0o600)
    file = map_file(path)
    assert file is not None
    array = np.frombuffer(memoryview(file)[5:-5], np.uint8)
    before = array.copy()
    full = resident(path)

    for part in (array[:10], array[5000:5001], array[4000:20000], array[:0], array, before):
        forget(part)

    assert resident(path) <= 8192 < full
    np.testing.assert_array_equal(array, before)
    check(array)
    assert with_memory(before) is before
    assert with_memory(array) is not array
