"""The command line: what it prints, what it exits with, and what it says of wrong options."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

from asyncrt.cli import bench, compare, devices
from asyncrt.cli.bench import Budget, Load, Measured, Ratio, Turn
from asyncrt.cli.commands import app
from asyncrt.cli.inputs import InputOptions
from asyncrt.devices.base import DeviceReport
from asyncrt.dims import Dim
from asyncrt.layout import BFLOAT16, BOOL, FLOAT32, INT64, UINT8, PartialLayout
from asyncrt.version import __version__

from ..environment import interruptible
from ..tiny_models import double, make

BATCH, SEQ = Dim.named("batch"), Dim.named("seq")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """`total = x + y`, and `kept`, a transpose of it that is a no-op for a batch of one."""
    nodes = [
        helper.make_node("Add", ["x", "y"], ["total"], name="[/add]"),
        helper.make_node("Transpose", ["total"], ["turned"], name="turn", perm=[1, 0]),
        helper.make_node("Mul", ["turned", "turned"], ["squared"], name="square"),
    ]
    path = tmp_path / "model.onnx"
    onnx.save(make(nodes, {"x": "float batch seq", "y": "float batch seq"}, ["total", "squared"]), path)
    return str(path)


def call(*arguments: str, status: int = 0) -> tuple[str, str]:
    """Run `asyncrt`, check its exit status, and return what it wrote to stdout and stderr, as plain words."""
    result = CliRunner(env={"COLUMNS": "240"}).invoke(app, list(arguments))
    assert status == result.exit_code, f"{result.output}\n{result.exception!r}"
    return _plain(result.stdout), _plain(result.stderr)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"\x1b\[[\d;]*m", "", text).replace("│", " ").split())


# The program itself.


def test_the_version_and_the_help_are_there() -> None:
    """`python -m asyncrt` is the same program; every command shows an example of itself."""
    done = subprocess.run([sys.executable, "-m", "asyncrt", "--version"], capture_output=True, text=True, check=True)

    assert f"asyncrt {__version__}\n" == done.stdout
    for command in ("devices", "run", "explain", "trace", "bench", "tune"):
        assert f"asyncrt {command}" in call(command, "--help")[0].partition("Example")[2]


def test_ctrl_c_ends_quietly_with_130(model: str) -> None:
    """A long benchmark is interrupted while it measures: no traceback, no table."""
    command = [sys.executable, "-m", "asyncrt", "bench", model, "-s", "batch=1", "-s", "seq=4", "-d", "host"]
    command += ["--seconds", "600"]
    plain = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    with subprocess.Popen(
        command, stdout=-1, stderr=-1, text=True, env=plain, preexec_fn=interruptible
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        said = "".join(process.stderr.readline() for _ in range(3))  # the device and both inputs: it is loaded
        process.send_signal(signal.SIGINT)

        try:
            assert process.wait(60) == 130
        finally:
            process.kill()
        assert (process.stdout.read(), process.stderr.read()) == ("", "")
        assert "x: normal" in said


# asyncrt devices


def test_devices_lists_what_works() -> None:
    """The reference devices are always there, and who enqueues; with an OpenCL device that works the status is 0."""
    table, _ = call("devices")
    listed = json.loads(call("devices", "--json")[0])

    assert "opencl:" in table
    assert {"host", "simulated"} <= {d["spec"] for d in listed["devices"]}
    assert listed["problems"] == []
    assert ("enqueued by native code" in table) == listed["native_submit"]


def test_devices_says_why_launches_are_made_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is slower, and there is something to do about it."""
    monkeypatch.setattr(devices, "why_launched_from_python", lambda: "it was not built; install it again")

    table, _ = call("devices")

    assert "enqueued from Python: it was not built; install it again" in table
    assert json.loads(call("devices", "--json")[0])["native_submit"] is False


def test_without_a_working_opencl_device_the_status_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason and the way to a driver are shown."""
    broken = DeviceReport("opencl:0:0", "Toaster", "gpu", "ACME [CL]", False, "no memory", "buy some")
    host = DeviceReport("host", "NumPy", "host", "-", True)
    monkeypatch.setattr(devices, "list_devices", lambda: [broken, host])
    monkeypatch.setattr(devices, "driver_problems", lambda: ("a library is missing",))

    table, said = call("devices", status=1)

    assert "opencl:0:0 Toaster gpu ACME [CL] no no memory hint: buy some" in table
    assert "problem: a library is missing" in said
    assert "error: no OpenCL device works here hint install a driver: `pip install asyncrt[cpu]`" in said


# asyncrt run


def test_run_takes_a_precision(tmp_path: Path) -> None:
    """1.001 is 1 in bfloat16; a precision that there is not is a wrong option."""
    path = str(tmp_path / "scale.onnx")
    weights = onnx.numpy_helper.from_array(np.full((2, 2), 1.001, np.float32), "w")
    product = make([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": "float rows 2"}, ["y"])
    product.graph.initializer.append(weights)
    onnx.save(product, path)
    np.save(tmp_path / "x.npy", np.ones((1, 2), np.float32))
    given = ("run", path, "-i", f"x={tmp_path / 'x.npy'}", "-d", "host")

    wide, _ = call(*given)
    narrow, _ = call(*given, "--precision", "bf16")
    call(*given, "--precision", "bf15", status=2)

    assert "y float32[1,2] 2.002 2.002 2.002" in wide
    assert "y float32[1,2] 2 2 2" in narrow


@pytest.mark.parametrize(
    "options", [(), ("--without", "skip", "--without", "replay", "--streams", "2", "--repeat", "3")]
)
def test_run_fills_inputs_and_summarises_outputs(model: str, options: tuple[str, ...]) -> None:
    """It says what was filled in, and for each output its layout and the range of its values."""
    said, _ = call("run", model, "--shape", "batch=2", "--shape", "seq=3", "--range", "y=5:6", "-d", "host", *options)

    assert "x float32[2,3] normal" in said
    assert "y float32[2,3] uniform from 5 to 6" in said
    assert "total float32[2,3]" in said
    assert "squared float32[3,2]" in said
    counts = "3 ran, 0 fused, 0 skipped" if options else "2 ran, 0 fused, 0 skipped, 1 left as views"
    assert f"tiny: 3 nodes, {counts}" in said
    assert ("in the median of 2 more" in said) == ("--repeat" in options)


def test_run_draws_words_and_shows_texts(tmp_path: Path) -> None:
    """What is no array of numbers is neither saved nor compared, and sequences are refused."""
    for kind in ("string[n]", "seq(float[n])"):
        text = f"<ir_version: 8, opset_import: ['' : 21]> same ({kind} x, float[n] z) => ({kind} y, float[n] w)"
        file = onnx.parser.parse_model(text.replace("'", '"') + "{ y = Identity (x) w = Neg (z) }")
        onnx.save(file, tmp_path / f"{kind[:3]}.onnx")

    rest, folder = ("-s", "n=2", "-d", "host"), tmp_path / "o"
    said, _ = call("run", str(tmp_path / "str.onnx"), *rest, "--check", "--save", str(folder))
    refused = call("run", str(tmp_path / "seq.onnx"), *rest, status=2)

    assert "random words" in said
    assert re.search(r"y +ndarray ", said)
    assert [p.name for p in folder.iterdir()] == ["w.npy"]
    assert "the command line" in "".join(refused)


def test_run_takes_and_saves_arrays(model: str, tmp_path: Path) -> None:
    """An input from a file binds the dims of the others; what is saved is what `infer()` gave."""
    np.save(tmp_path / "x.npy", np.array([[1, 2]], np.float32))
    out = tmp_path / "out"

    said, notes = call(
        "run", model, "-i", f"x={tmp_path}/x.npy", "--range", "y=0:0.001", "-d", "host", "--save", str(out)
    )

    assert f"x float32[1,2] {tmp_path}/x.npy" in said
    assert "saved squared to" in notes
    np.testing.assert_allclose(np.load(out / "total.npy"), [[1, 2]], atol=0.002)
    np.testing.assert_allclose(np.load(out / "squared.npy"), [[1], [4]], atol=0.01)


def test_the_same_seed_gives_the_same_inputs(model: str, tmp_path: Path) -> None:
    """Another seed gives others."""
    sizes = ("-s", "batch=1", "-s", "seq=4", "-d", "host")
    for folder, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        call("run", model, *sizes, "--seed", seed, "--save", str(tmp_path / folder))
    a, b, c = (np.load(tmp_path / folder / "total.npy") for folder in "abc")

    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def test_check_compares_with_onnx_runtime(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agreement is 0; an output that differs is 1, with the largest difference."""
    pytest.importorskip("onnxruntime")
    arguments = ("run", model, "-s", "batch=2", "-s", "seq=3", "--check")
    agreed, _ = call(*arguments)
    run = compare.OnnxRuntime.run
    monkeypatch.setattr(
        compare.OnnxRuntime, "run", lambda self, x: {k: v + (k == "total") for k, v in run(self, x).items()}
    )

    differed, _ = call(*arguments, status=1)

    assert "total 0 0.00" in agreed.partition("as ONNX Runtime")[2]
    assert " no " not in agreed.partition("as ONNX Runtime")[2]
    assert "total 1 0.00" in differed
    assert " no squared" in differed


def test_differences_are_judged_by_dtype() -> None:
    """Floats may round, integers may not; infinities and NaN must be where they are expected."""
    f32, big = np.float32, np.array([2**63 - 1, -(2**63)])

    assert compare.compare(np.array([100], f32), np.array([100.09], f32)).fits
    assert not compare.compare(np.array([1], f32), np.array([1.002], f32)).fits
    assert compare.compare(np.array([1], np.float16), np.array([1.005], np.float16)).fits
    assert compare.compare(np.array([np.inf, np.nan], f32), np.array([np.inf, np.nan], f32)).fits
    assert np.inf == compare.compare(np.array([np.inf], f32), np.array([-np.inf], f32)).largest
    assert np.inf == compare.compare(np.array([np.nan], f32), np.array([0], f32)).largest
    assert compare.compare(big, big[::-1]).largest == 2.0**64
    assert compare.compare(np.array([True]), np.array([False])).largest == 1.0
    assert compare.compare(np.ones((0, 3), f32), np.ones((0, 3), f32)).fits
    assert compare.compare(np.ones(2, f32), np.ones((1, 2), f32)).mismatch == "expected float32(2,), got float32(1, 2)"


# asyncrt warm


def test_warm_fills_the_folder_for_those_who_come(model: str, tmp_path: Path) -> None:
    """Also for sizes that are not likely; whoever comes next builds nothing."""
    folder = str(tmp_path / "kernels")
    sizes = ("-s", "batch=1,3", "-s", "seq=4", "-d", "cpu", "--cache-dir", folder)

    first, _ = call("warm", model, *sizes)
    second, _ = call("warm", model, *sizes)

    built = int(first.split()[0])
    assert built > 0
    assert f"{built} kernels built, 0 were there; in {folder}" in first
    assert f"0 kernels built, {built} were there" in second


# asyncrt explain


def test_explain_shows_what_became_of_each_node(model: str) -> None:
    """Names with brackets are names, not markup; `--only` keeps the counts of the whole model."""
    sizes = ("-s", "batch=1", "-s", "seq=4", "-d", "host")

    table, notes = call("explain", model, *sizes)
    skipped, _ = call("explain", model, *sizes, "--only", "skipped")

    assert "[/add] Add ran float32[1,4]" in table
    assert "turn Transpose skipped float32[4,1]" in table
    assert "x float32[1, 4]: normal" in notes
    assert "tiny: 3 nodes, 2 ran, 0 fused, 1 skipped" in skipped
    assert "square" not in skipped
    assert "turn Transpose skipped" in skipped


def test_explain_prints_json(model: str) -> None:
    """stdout is one document, whatever is said beside it."""
    printed, _ = call("explain", model, "-s", "batch=1", "-s", "seq=4", "-d", "host", "--json", "--only", "skipped")
    document = json.loads(printed)

    assert document["counts"] == {"ran": 2, "fused": 0, "skipped": 1, "view": 0, "empty": 0, "host": 0}
    assert [node["node"] for node in document["nodes"]] == ["turn"]
    assert document["nodes"][0]["alias_of"] == "total"


def test_explain_profiles(model: str) -> None:
    """`--profile` measures each node that ran, and no other; the sum is in the headline."""
    sizes = ("-s", "batch=1", "-s", "seq=4", "-d", "simulated", "--profile")
    table, _ = call("explain", model, *sizes)
    printed, _ = call("explain", model, *sizes, "--json")

    times = {n["node"]: n["device_us"] for n in json.loads(printed)["nodes"]}
    assert "device µs" in table
    assert times["turn"] is None
    assert all(times[name] > 0 for name in ("[/add]", "square"))
    assert f"{times['[/add]'] + times['square']:.1f} µs on the device" in table


def test_explain_writes_a_page(model: str, tmp_path: Path) -> None:
    """It says where, and prints what it prints anyway; the page has all nodes, whatever is printed."""
    file, nowhere = tmp_path / "graph.html", tmp_path / "nothing" / "graph.html"
    options = ("-s", "batch=1", "-s", "seq=4", "-d", "host", "--only", "skipped", "--html")

    printed, notes = call("explain", model, *options, str(file))
    _, failed = call("explain", model, *options, str(nowhere), status=1)

    assert f"the graph is in {file}" in notes
    assert "turn Transpose skipped" in printed
    names = re.findall(r'data-row="\d+" class="\w+"><td>([^<]*)', file.read_text(encoding="utf-8"))
    assert names == ["[/add]", "turn", "square"]
    assert str(nowhere) in failed


# asyncrt trace


def test_trace_writes_a_file_that_shows_each_request(model: str, tmp_path: Path) -> None:
    """As many requests as were asked for, and planning only where nothing was warmed up."""
    file, cold, nowhere = tmp_path / "trace.json", tmp_path / "cold.json", tmp_path / "no" / "trace.json"
    options = ("-s", "batch=1", "-s", "seq=4", "-d", "simulated", "--requests", "3", "-o")
    _, notes = call("trace", model, *options, str(file))
    call("trace", model, *options, str(cold), "--warm", "0")
    _, failed = call("trace", model, *options, str(nowhere), status=1)

    warm_events, cold_events = (json.loads(f.read_text())["traceEvents"] for f in (file, cold))
    assert [e["name"] for e in warm_events].count("square") == 3
    assert [e["name"] for e in warm_events].count("turn skipped") == 3
    assert "plan" not in [e["name"] for e in warm_events]
    assert "plan" in [e["name"] for e in cold_events]
    assert f"the trace is in {file}" in notes
    assert "No such file or directory" in failed


# asyncrt bench


def test_bench_measures_every_combination_beside_onnx_runtime(model: str, tmp_path: Path) -> None:
    """A row for each, from as many requests as were asked for, with ONNX Runtime's and the ratio."""
    pytest.importorskip("onnxruntime")
    file = tmp_path / "figures.json"

    table, _ = call(
        "bench", model, "-s", "seq=2,5", "-s", "batch=1,3", "-c", "4", "-n", "102", "-d", "host", "--json", str(file)
    )

    document = json.loads(file.read_text())
    rows = document["rows"]
    assert [(r["sizes"]["seq"], r["sizes"]["batch"]) for r in rows] == [(2, 1), (2, 3), (5, 1), (5, 3)]
    assert {102} == {r[runtime]["requests"] for r in rows for runtime in ("asyncrt", "onnxruntime")}
    assert all(0 < r["asyncrt"]["p50_ms"] <= r["asyncrt"]["p90_ms"] <= r["asyncrt"]["p99_ms"] for r in rows)
    assert all(r["ratio"]["least"] <= r["ratio"]["greatest"] for r in rows)
    assert (document["device"]["spec"], document["concurrency"]) == ("host", 4)
    assert "seq=5 batch=3 asyncrt 102" in table


def test_bench_runs_alone_and_for_a_time(model: str) -> None:
    """`--no-compare` leaves ONNX Runtime out; `--seconds` ends a row by the clock."""
    table, _ = call(
        "bench", model, "-s", "seq=2", "-s", "batch=1", "--seconds", "0.02", "--no-compare", "-d", "host"
    )

    assert "seq=2 batch=1 asyncrt" in table
    assert "ONNX Runtime" not in table


def test_the_two_runtimes_take_turns() -> None:
    """After a warm-up of each: a block of the one, a block of the other, five times."""
    turns: list[str] = []

    def client(name: str) -> bench.Client:
        async def send(budget: Budget) -> list[float]:
            sent = 0
            while budget.take():
                sent += 1
                turns.append(name)
            return [0.001 if name == "a" else 0.002] * sent

        return send

    row = asyncio.run(bench.measure({"n": 1}, client("a"), client("b"), Load(2, 20, None), lambda: None))

    warm_up = "a" * 5 + "b" * 5
    assert warm_up + "aaaabbbb" * 5 == "".join(turns)
    assert (row.asyncrt.requests, row.onnxruntime and row.onnxruntime.requests) == (20, 20)
    assert Ratio(2.0, 2.0, 2.0) == row.ratio


def test_a_failed_client_stops_the_others() -> None:
    """The error is the client's own, and the budget is closed so that threads end too."""
    budgets: list[Budget] = []

    async def send(budget: Budget) -> list[float]:
        budgets.append(budget)
        if len(budgets) == 1:
            return [0.001]  # the warm-up of one request; many follow
        raise MemoryError("full")

    with pytest.raises(MemoryError, match="full"):
        asyncio.run(bench.measure({}, send, None, Load(2, 20, None), lambda: None))

    assert not budgets[-1].take()


def test_p99_needs_a_hundred_requests() -> None:
    """Of fewer it would be little else than the slowest."""
    few, many = Turn([0.001] * 99, 0.5), Turn([0.001] * 100, 0.5)

    assert Measured(99, 1.0, 1.0, None, 198.0) == Measured.of([few])
    assert Measured(200, 1.0, 1.0, 1.0, 200.0) == Measured.of([many, many])


def test_the_spread_is_over_pairs_of_blocks() -> None:
    """The ratio is of the medians of everything; its ends are the extreme pairs."""
    ours = [Turn([1.0], 1), Turn([1.0], 1), Turn([2.0], 1)]
    theirs = [Turn([2.0], 1), Turn([4.0], 1), Turn([2.0], 1)]

    assert Ratio(2.0, 1.0, 4.0) == Ratio.of(ours, theirs)


def test_blocks_share_the_load_evenly() -> None:
    """Every request is in one block; every client has one to send, as long as there are enough."""
    assert [requests for requests, _ in Load(8, 102, None).blocks()] == [21, 21, 20, 20, 20]
    assert [requests for requests, _ in Load(8, 16, None).blocks()] == [8, 8]
    assert [requests for requests, _ in Load(8, 3, None).blocks()] == [3]
    assert Load(8, None, 10.0).blocks() == [(None, 2.0)] * 5


# Inputs.


def test_values_are_drawn_by_dtype() -> None:
    """Floats are normal, integers 0 or 1 or as --range says, masks are ones; the source says which."""
    shape = (BATCH, 50)
    inputs = {
        "x": PartialLayout(FLOAT32, shape),
        "half": PartialLayout(BFLOAT16, shape),
        "ids": PartialLayout(INT64, shape),
        "bytes": PartialLayout(UINT8, shape),
        "attention_mask": PartialLayout(INT64, shape),
        "flags": PartialLayout(BOOL, shape),
    }
    options = InputOptions.parse(None, ["batch=4"], ["ids=3:30522", "bytes=0:256"], 0)
    (sizes,) = options.combinations()

    filled = options.fill(inputs, sizes)

    assert list(inputs) == list(filled.arrays)
    assert all(a.shape == (4, 50) and inputs[n].dtype.numpy == a.dtype for n, a in filled.arrays.items())  # type: ignore[union-attr]
    assert filled.arrays["x"].std() == pytest.approx(1, abs=0.2)
    assert 3 <= filled.arrays["ids"].min() < filled.arrays["ids"].max() < 30522
    assert filled.arrays["bytes"].max() > 200
    assert (filled.arrays["attention_mask"] == 1).all()
    assert {False, True} == set(filled.arrays["flags"].reshape(-1).tolist())
    assert filled.sources["ids"] == "random from 3 to 30521"
    assert filled.sources["attention_mask"] == "ones, as it is a mask"


@pytest.mark.parametrize("text", ["2x3", "2,3", "[2,3]", "[2x3]"])
def test_a_shape_may_be_written_in_several_ways(text: str) -> None:
    """All of them are the same shape, and bind the dims of other inputs."""
    options = InputOptions.parse([f"x={text}"], None, None, 0)
    inputs = {"x": PartialLayout(FLOAT32, (BATCH, SEQ)), "y": PartialLayout(FLOAT32, (SEQ, BATCH))}

    filled = options.fill(inputs, {})

    assert tuple(a.shape for a in filled.arrays.values()) == ((2, 3), (3, 2))


def test_a_scalar_is_an_empty_shape() -> None:
    """An input of unknown rank is one if the user says so."""
    filled = InputOptions.parse(["x=[]"], None, None, 0).fill({"x": PartialLayout(FLOAT32, None)}, {})

    assert filled.arrays["x"].shape == ()


# Errors.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "give the size of batch, seq, as --shape batch=1 --shape seq=1; it takes x float32[batch,seq]"),
        (("--shape", "batch"), "expected DIM=SIZE, got 'batch'"),
        (("--shape", "batch=2,3"), "expected one size, as batch=16, got '2,3'"),
        (("--shape", "depth=2"), "no input has a dim 'depth'; the model has batch, seq"),
        (("--shape", "batch=2", "--shape", "batch=3"), "'batch' is given twice"),
        (("--input", "x=2y3"), "expected x=2x16, x=2,16, x=[] for a scalar or x=FILE.npy, got '2y3'"),
        (("--input", "z=2x3"), "the model has no input 'z'"),
        (("--input", "x=2x3", "--shape", "seq=4"), "'x' is [2,3], but 'seq' is 4 already"),
        (("--input", "x=missing.npy"), "missing.npy does not load"),
        (("--range", "x=5:5", "-i", "x=1x1"), "expected x=LOW:HIGH with LOW less than HIGH, as x=0:100, got '5:5'"),
        (("--range", "x=a:b", "-i", "x=1x1"), "with LOW less than HIGH"),
        (("--repeat", "0"), "Invalid value for '--repeat'"),
        (("--wrong",), "No such option: --wrong"),
    ],
)
def test_a_wrong_option_exits_with_2_and_says_what_was_expected(
    model: str, options: tuple[str, ...], expected: str
) -> None:
    """No traceback, whatever it is."""
    _, said = call("run", model, "-d", "host", *options, status=2)

    assert expected in said


def test_a_range_must_fit_the_dtype() -> None:
    """An integer that cannot be held is not drawn."""
    inputs = {"n": PartialLayout(UINT8, (2,)), "b": PartialLayout(BOOL, (2,))}

    with pytest.raises(Exception, match="'n' is uint8; expected integers from 0 to 256"):
        InputOptions.parse(None, None, ["n=0:257"], 0).fill(inputs, {})
    with pytest.raises(Exception, match="'n' is uint8; expected integers"):
        InputOptions.parse(None, None, ["n=0:1.5"], 0).fill(inputs, {})
    with pytest.raises(Exception, match="'b' is bool, which has no range"):
        InputOptions.parse(None, None, ["b=0:1"], 0).fill(inputs, {})


def test_bench_takes_requests_or_seconds(model: str) -> None:
    """Both at once say nothing clear."""
    _, said = call("bench", model, "-n", "5", "--seconds", "1", status=2)

    assert "expected either --requests or --seconds, got both" in said


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("--device", "warp"), "error: device 'warp' is not a device's name hint use None, 'cpu'"),
        (("--device", "host,warp"), "error: device 'warp' is not a device's name hint use None, 'cpu'"),
        (("-i", "x=2x3x4", "-i", "y=2x3"), "error: input 'x': expected rank 2 [batch,seq], got rank 3 [2,3,4]"),
        (("--input", "x=2x3", "--input", "y=2x3", "--save", "{model}/sub"), "error: "),
    ],
)
def test_an_error_is_a_message_and_the_status_1(model: str, change: tuple[str, ...], expected: str) -> None:
    """What asyncrt raises is shown without a traceback, brackets and hints included."""
    _, said = call("run", model, "-d", "host", *(c.format(model=model) for c in change), status=1)

    assert expected in said
    assert "Traceback" not in said


def test_a_file_that_is_no_model_is_an_error(tmp_path: Path) -> None:
    """Its path is named."""
    path = tmp_path / "broken.onnx"
    path.write_bytes(double().SerializeToString()[:20])

    _, said = call("explain", str(path), status=1)
    _, missing = call("explain", str(tmp_path / "nothing.onnx"), status=2)

    assert said.startswith(f"error: '{path}'")
    assert "does not exist" in missing
