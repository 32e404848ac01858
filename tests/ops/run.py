"""Run one operator alone: on a device through its kernels, and through its reference.

Most of the time of such tests is the driver's compiler's, so a process has one device for them, with its kernels.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from asyncrt.devices.base import Device, Stream
from asyncrt.devices.find import open_device
from asyncrt.errors import KernelBuildError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import FOUND, Impl, Ref
from asyncrt.kernels.indices import FINDING
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.kinds import held, map_of, optional_of, sequence_of
from asyncrt.layout import FLOAT32, INT64, STRING, Array, DataType, Layout, layout_of

_NAMES = {
    "f32": np.float32, "f16": np.float16, "f64": np.float64, "bf16": ml_dtypes.bfloat16, "i8": np.int8, "u8": np.uint8,
    "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64,
    "bool": np.bool_,
}  # fmt: skip
_TOLERANCES = {"float16": (2e-3, 2e-3), "bfloat16": (2e-2, 2e-2), "float32": (2e-5, 2e-5), "float64": (1e-6, 1e-6)}


PROGRAMS = "ASYNCRT_TEST_PROGRAMS"
"""The variable with the folder in which the processes of a test run find what one of them has built."""
Variant: TypeAlias = tuple[bool, DeviceTraits]
"""Whether all inputs of an example but the first are constants, and for which device its kernels are chosen."""
_MOST = 1000  # kernels that are kept in memory


class Workbench:
    """The best device, a stream of it, and the kernels that were built for it: the newest of them stay."""

    def __init__(self) -> None:
        self.device = open_device(None)
        self.stream = self.device.open_stream()
        self._built: OrderedDict[Any, Any] = OrderedDict()
        self._folder = Path(os.environ[PROGRAMS])

    def close(self) -> None:
        self.stream.close()
        self.device.close()

    def kernels(self, sources: Iterable[Any]) -> dict[Any, Any]:
        """Return a kernel for each source; the driver builds those that are nowhere as one program."""
        wanted = dict.fromkeys(sources)
        missing = [source for source in wanted if source not in self._built and not self._load(source)]
        if missing:
            for source in missing:
                assert_whole(source)
            built, binary = self.device.build(missing, None)
            self._built.update(built)
            self._keep(missing, binary)
        for source in wanted:
            self._built.move_to_end(source)
        found = {source: self._built[source] for source in wanted}
        while len(self._built) > _MOST:
            self._built.popitem(last=False)
        return found

    def _path(self, source: Any) -> Path:
        return self._folder / hashlib.sha256(f"{source.name} {source.text}".encode()).hexdigest()

    def _load(self, source: Any) -> bool:
        """Take a kernel from the program in which a process of this test run has built it, if one has."""
        try:
            binary = self._path(source).read_bytes()
        except FileNotFoundError:
            return False
        self._built.update(self.device.build([source], binary)[0])
        return True

    def _keep(self, sources: Sequence[Any], binary: bytes | None) -> None:
        """Let other processes find the program of *sources*, whole or not at all."""
        if binary is None:
            return
        written = self._folder / f"{os.getpid()}.new"
        written.write_bytes(binary)
        for source in sources:
            with contextlib.suppress(FileExistsError):
                os.link(written, self._path(source))
        written.unlink()


def assert_whole(source: Any) -> None:
    """Whether a kernel's text defines what it calls: another one of the same program may define it, too."""
    code = re.sub(r"//.*|^\s*#.*", "", source.text, flags=re.MULTILINE)
    macros, functions = r"#\s*define (\w+)", r"(\w+)\([^()]*\)\s*{"
    defined = {*re.findall(macros, source.text), *re.findall(functions, source.text)}
    missing = set(re.findall(r"\basyncrt_\w+|\bASYNCRT_\w+", code)) - defined
    assert not missing, f"{source.name} lacks {missing}"


@functools.cache
def workbench() -> Workbench:
    """The one of this process."""
    return Workbench()


def best_device() -> Device:
    """The device of the process's workbench; it stays open."""
    return workbench().device


def of_numbers(values: Iterable[Array | None]) -> bool:
    """Whether all values are tensors of numbers, and none is a text, a sequence, an optional or a map."""
    return all(a is None or a.dtype.kind not in "OT" for a in values)


def arrays(example: Example) -> list[Array | None]:
    """Return an example's inputs; strings become reproducible random arrays without zeros."""
    made: list[Array | None] = []
    for position, given in enumerate(example.inputs):
        if isinstance(given, tuple | list | dict):
            made.append(held(given))
            continue
        if not isinstance(given, str):
            made.append(given)
            continue
        match = re.fullmatch(r"(\w+)\[([\d,]*)\]", given)
        assert match, given
        dtype = np.dtype(_NAMES[match[1]])
        shape = tuple(int(d) for d in match[2].split(",") if d)
        random = np.random.default_rng(zlib.crc32(f"{position} {given}".encode()))
        if dtype == np.bool_:
            made.append(random.random(shape) < 0.5)
        elif dtype.kind in "iu":
            made.append(random.integers(1, 7, shape).astype(dtype))
        else:
            made.append(random.standard_normal(shape).astype(dtype))
    return made


def traits_of(device: Device, *, packed_weights: bool = True) -> DeviceTraits:
    info = device.info
    kind = "cpu" if info.is_cpu else "gpu"
    return DeviceTraits(kind, info.compute_units, info.max_group, info.features, packed_weights)


def make_call(
    operator: Operator, example: Example, inputs: Sequence[Array | None], expected: Sequence[Array], *, constant: bool
) -> Call:
    """Return the call of an example; with *constant*, every input but the first is a constant of the model."""
    layouts = tuple(None if a is None else layout_of(a) for a in inputs)
    known = {i for i in range(1, len(inputs)) if constant} | set(operator.shape_infer_dependencies)
    values = tuple(a if i in known else None for i, a in enumerate(inputs))
    types = tuple(layout_of(e).dtype for e in expected)
    constants = tuple(constant and i > 0 and a is not None for i, a in enumerate(inputs))
    attributes = Attributes(example.attributes, example.opset or 21, example.outputs)
    call = Call("example", attributes, layouts, values, (), types, constants)
    shapes = operator.infer(call)
    return call._replace(outputs=tuple(Layout(t, tuple(s)) for t, s in zip(types, shapes, strict=True)))


def type_of(given: Any, array: Array) -> DataType:
    """Return the type of an example's input; what a list, an optional, holds is the type's element."""
    match given:
        case tuple():
            return sequence_of(FLOAT32 if not given else type_of(given[0], given[0]))
        case list():
            return optional_of(FLOAT32 if not given else type_of(given[0], given[0]))
        case dict():
            return map_of(STRING if isinstance(next(iter(given)), str) else INT64, FLOAT32)
    return layout_of(array).dtype


def variants() -> tuple[Variant, ...]:
    """How the best device carries an example out: whether all inputs but the first are constants, and packed ones."""
    usual, unpacked = traits_of(best_device()), traits_of(best_device(), packed_weights=False)
    return (False, usual), (True, usual), (True, unpacked)


def host_only(operator: Operator, inputs: Sequence[Array | None], expected: Sequence[Array]) -> str:
    """Say why the best device has no kernel that gives *expected*; nothing if it has one."""
    if operator.implement is None or not operator.has_kernel(None if inputs[0] is None else layout_of(inputs[0]).dtype):
        return "runs on the host"
    if any(a is not None and a.dtype == np.float64 for a in inputs) and "fp64" not in best_device().info.features:
        return "the device has no float64"
    if any(a is not None and a.dtype == STRING.numpy for a in (*inputs, *expected)):
        return "texts are on the host"
    return ""


def build(impls: Iterable[Impl]) -> None:
    """Build all kernels of *impls* as one program, which takes the driver less than one for each."""
    workbench().kernels([launch.kernel for impl in impls for launch in impl.launches])


@functools.cache
def build_examples(operator: Operator, *ways: Variant) -> None:
    """Build the kernels of an operator's examples, each in these ways; what fails, fails again in its own test."""
    impls = []
    for example in operator.examples:
        with contextlib.suppress(Exception):
            inputs = arrays(example)
            expected = reference(operator, example, inputs)
            if operator.implement is None or host_only(operator, inputs, expected):
                continue
            for constant, traits in ways:
                call = make_call(operator, example, inputs, expected, constant=constant)
                impls.append(operator.implement(call, traits))
    with contextlib.suppress(KernelBuildError):
        build(impls)


def reference(operator: Operator, example: Example, inputs: Sequence[Array | None]) -> list[Array]:
    results = operator.reference(Attributes(example.attributes, example.opset or 21, example.outputs), inputs)
    return [np.asarray(r) for r in results][: example.outputs]


def run_impl(impl: Impl, call: Call, inputs: Sequence[Array | None], finding: Array | None = None) -> list[Array]:
    """Carry *impl* out on the best device. Every output starts as a pattern, so that what is not written shows.

    Args:
        finding: Gets what its launches note of indices; without it there must be nothing to note.
    """
    device = best_device()
    found = np.zeros(FINDING.shape, np.int32) if finding is None else finding
    stream = workbench().stream
    buffers = _upload(impl, call, inputs, device, stream)
    kernels = workbench().kernels(launch.kernel for launch in impl.launches)
    for launch in impl.launches:
        record = device.pack([PAD] * len(launch.buffers), launch.ints)
        places = [buffers[r] for r in launch.buffers]
        stream.launch(kernels[launch.kernel], places, record, launch.grid, launch.group, launch.local)
    results = [np.empty(layout.shape, layout.dtype.numpy) for layout in call.outputs]
    for i, result in enumerate(results):
        if result.nbytes:
            stream.read(buffers[Ref("output", i)], PAD, result)
    stream.read(buffers[FOUND], PAD, found)
    failures: list[BaseException] = []
    reached = threading.Event()

    def tell(error: BaseException | None) -> None:
        failures.extend([] if error is None else [error])
        reached.set()

    stream.when_reached(stream.mark(), tell)
    reached.wait()
    for buffer in buffers.values():
        device.release(buffer)
    if failures:
        raise failures[0]
    assert finding is not None or not found.any(), "an index was found out of range"
    return results


PAD = 256
"""Every buffer begins at this offset, so that an ignored offset shows."""


def _upload(
    impl: Impl, call: Call, inputs: Sequence[Array | None], device: Device, stream: Stream
) -> dict[Ref, Any]:
    """Return every buffer that *impl* uses, with the inputs, the packed weights, or a pattern in it."""

    def upload(data: Array) -> Any:
        buffer = device.allocate(data.nbytes + PAD)
        if data.nbytes:
            stream.write(buffer, PAD, np.ascontiguousarray(data))
        return buffer

    buffers: dict[Ref, Any] = {}
    for i, a in enumerate(inputs):
        if a is not None:
            buffers[Ref("input", i)] = upload(a)
    for i, layout in enumerate(call.outputs):
        buffers[Ref("output", i)] = upload(np.full(layout.nbytes, 0xA5, np.uint8))
    for i, nbytes in enumerate(impl.scratch):
        buffers[Ref("scratch", i)] = upload(np.full(nbytes, 0xFF, np.uint8))
    for i, request in enumerate(impl.weights):
        value = inputs[request.source]
        assert value is not None
        packed = request.pack(value)
        assert request.elements == packed.size, f"{impl.name}: {request.layout}"
        buffers[Ref("weights", i)] = upload(packed)
    buffers[FOUND] = upload(np.zeros(FINDING.shape, np.int32))
    return buffers


def assert_same(expected: Any, got: Any, what: str) -> None:
    """What a sequence, an optional or a map holds."""
    if isinstance(expected, tuple | list):
        assert isinstance(got, tuple | list), what
        assert len(expected) == len(got), f"{what}: {len(got)} elements, expected {len(expected)}"
        for one, other in zip(expected, got, strict=True):
            assert_same(one, other, what)
    elif isinstance(expected, dict):
        assert list(expected) == list(got), what
        np.testing.assert_allclose(list(got.values()), list(expected.values()), rtol=1e-6, err_msg=what)
    else:
        np.testing.assert_array_equal(got, expected, err_msg=what)


def assert_close(expected: Array, got: Array, what: str) -> None:
    """Floats within the tolerance of their dtype, everything else exactly."""
    assert expected.dtype == got.dtype, f"{what}: dtype {got.dtype}, expected {expected.dtype}"
    assert expected.shape == got.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    tolerance = _TOLERANCES.get(expected.dtype.name)
    if expected.dtype == object:
        assert_same(expected.item(), got.item(), what)
    elif tolerance is None:
        np.testing.assert_array_equal(got, expected, err_msg=what)
    else:
        relative, absolute = tolerance
        np.testing.assert_allclose(
            got.astype(np.float64), expected.astype(np.float64), rtol=relative, atol=absolute, err_msg=what
        )
