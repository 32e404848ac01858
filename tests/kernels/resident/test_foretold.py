"""What a model wanted before is loaded while it is read; a note that is wrong costs time and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.base import LoadsAhead
from asyncrt.devices.find import open_device
from asyncrt.devices.opencl import device as opencl_device
from asyncrt.devices.opencl.ahead import load_all
from asyncrt.graph.reading.source import likeness
from asyncrt.kernels.resident.foretold import Foretold
from asyncrt.kernels.resident.store import BinaryStore

from ...builders import model, node

SOFTMAX = model([node("t = Tanh(x)"), node("s = Softmax(t)"), node("y = ReduceSum(s)")], ["x f32[n,8]"], ["y"])
X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)


class Driver:
    """The best device, which notes what is loaded ahead and what is loaded later."""

    def __init__(self) -> None:
        self.device = cast("Any", open_device(None))
        assert _loads_ahead(self.device)
        self.ahead: list[str] = []
        self.later = 0
        load_ahead, load = self.device.load_ahead, self.device._load  # noqa: SLF001  # where all programs come through

        def loads_ahead(programs: Sequence[tuple[bytes, str]]) -> Sequence[Any]:
            held: Sequence[Any] = load_ahead(programs)
            self.ahead += [name for _, name in programs[: len(held)]]
            return held

        def loads(binary: bytes, name: str | None = None) -> Any:
            self.later += 1
            return load(binary)

        self.device.load_ahead, self.device._load = loads_ahead, loads  # noqa: SLF001


def _loads_ahead(device: object) -> bool:
    return isinstance(device, LoadsAhead)


async def answers(folder: Path, source: Any = SOFTMAX) -> tuple[Driver, Any, Any]:
    """Load a model on kernels kept in a folder, and run it."""
    driver = Driver()
    async with Runtime(driver.device, options=RuntimeOptions(cache_dir=folder)) as rt:
        loaded = await rt.load(source.SerializeToString())
        await loaded.ready()
        outputs = await loaded.infer({"x": X})
        return driver, outputs["y"], rt.statistics().kernels


@pytest.mark.asyncio
async def test_the_next_process_loads_ahead_what_the_first_plan_wanted(tmp_path: Path) -> None:
    """And finds all of it when it is wanted; another model is told nothing."""
    if load_all() is None:
        pytest.skip("nothing is loaded ahead without native code")
    other = model([node("y = Neg(x)")], ["x f32[n,8]"], ["y"])

    first, wanted, _ = await answers(tmp_path)
    again, got, kernels = await answers(tmp_path)
    strange, _, _ = await answers(tmp_path, other)

    assert first.ahead == strange.ahead == []
    assert again.ahead
    assert kernels.built == 0
    assert again.later <= kernels.from_disk - len(again.ahead)
    np.testing.assert_array_equal(wanted, got)


@pytest.mark.asyncio
async def test_what_is_loaded_is_not_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that comes back while its kernels are at hand asks the driver, which keeps some of each, for nothing."""
    given: list[str] = []
    loads = load_all()
    if loads is None:
        pytest.skip("nothing is loaded ahead without native code")

    def noted(context: int, device: int, options: bytes, programs: Sequence[tuple[bytes, str]]) -> tuple[int, ...]:
        given.extend(name for _, name in programs)
        return loads(context, device, options, programs)

    _, wanted, _ = await answers(tmp_path)
    monkeypatch.setattr(opencl_device, "load_all", lambda: noted)
    async with Runtime(cast("Any", open_device(None)), options=RuntimeOptions(cache_dir=tmp_path)) as rt:
        for _ in range(3):
            loaded = await rt.load(SOFTMAX.SerializeToString())
            await loaded.ready()
            outputs = await loaded.infer({"x": X})
            await rt.unload(loaded)
        kernels = rt.statistics().kernels

    assert given
    assert len(given) == len(set(given)) <= kernels.kernels
    np.testing.assert_array_equal(wanted, outputs["y"])


def test_programs_that_are_none_are_left_out() -> None:
    """Damaged ones, and those of another driver or processor, are not given to the driver."""
    device: Any = open_device(None)

    assert list(device.load_ahead([(b"", "a"), (b"\x7fELF and nothing else", "b")])) == []


class Remembers:
    """A device that loads nothing."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[bytes, str]]] = []

    def load_ahead(self, programs: Sequence[tuple[bytes, str]]) -> Sequence[Any]:
        self.asked.append(list(programs))
        return self.asked


def test_a_note_names_programs_that_are_there(tmp_path: Path) -> None:
    """One that is gone is left out, and what is no note says nothing."""
    store, device = BinaryStore(tmp_path / "kept"), Remembers()
    store.put("program 1", b"one")

    Foretold(store, device).note("driver", "model", {"program 1": "a", "program 2": "b"})
    Foretold(store, device).load("driver", "model")
    held = [Foretold(store, device).load(*names) for names in (("driver", "another"), ("newer driver", "model"))]
    for wrong in (b"", b"[1]", b'{"program 1": 1}', b"\xff"):
        store.put("driver|wanted by model", wrong)
        Foretold(store, device).load("driver", "model")

    assert device.asked == [[(b"one", "a")], [], [], [], []]
    assert held == [None, None]


def test_the_same_note_is_written_once(tmp_path: Path) -> None:
    """Whoever has read it, or written it, leaves the folder alone."""
    store = BinaryStore(tmp_path / "kept")
    noting, wants = Foretold(store, Remembers()), {"program": "a"}
    noting.note("driver", "model", wants)
    path = store.path_of("driver|wanted by model")
    path.unlink()
    noting.note("driver", "model", wants)
    before = path.exists()
    noting.note("driver", "model", {"program": "a", "another": "b"})

    assert not before
    assert path.exists()


def test_a_model_is_known_by_its_size_and_its_ends(tmp_path: Path) -> None:
    """As a file wherever it lies, or as its bytes; options that change kernels make it another one."""
    data, options = SOFTMAX.SerializeToString(), RuntimeOptions(without=set())
    (tmp_path / "a.onnx").write_bytes(data)
    (tmp_path / "b.onnx").write_bytes(data + b"\0")

    known = likeness(data, options)
    assert known is not None
    assert known == likeness(tmp_path / "a.onnx", options) == likeness(str(tmp_path / "a.onnx"), options)
    assert known != likeness(tmp_path / "b.onnx", options)
    assert known != likeness(data, RuntimeOptions(without={"fuse"}))
    assert known != likeness(data, RuntimeOptions(precision="bf16"))
    strangers: list[Any] = [SOFTMAX, tmp_path / "none.onnx", tmp_path, "a\0b", 7]
    assert [likeness(stranger, options) for stranger in strangers] == [None] * len(strangers)
