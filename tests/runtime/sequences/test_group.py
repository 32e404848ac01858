"""Sequences of a group: their steps run together, and each is as if it were alone."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator, Mapping

import attrs
import numpy as np
import pytest
import pytest_asyncio
from onnx import numpy_helper

import asyncrt
from asyncrt import DeadlineExceeded, Model, Runtime, RuntimeOptions, Sequence, SequenceGroup, Sharing
from asyncrt.devices.faults import Fault
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.errors import IndexOutOfRange
from asyncrt.layout import Array

from ...builders import i64, model, node
from ...ops.run import workbench
from ...paths import CHECKED
from ...zoo import FOLDER, some


@pytest_asyncio.fixture(params=("simulated", "host", None), ids=lambda d: d or "opencl")
async def rt(request: pytest.FixtureRequest, either_path: str) -> AsyncIterator[Runtime]:
    async with Runtime(request.param, streams=2, options=RuntimeOptions(warm=False)) as runtime:
        yield runtime
        assert runtime.statistics().memory.leases == 0
    assert runtime.statistics().memory.leases == 0


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@attrs.frozen
class Decoder:
    """A model of the zoo, and what it is known to allow."""

    name: str
    sharing: Sharing
    state: Mapping[str, str] | None = None

    def inputs(self, loaded: Model, past: int, length: int, number: int) -> dict[str, Array]:
        """The inputs of a step of sequence *number*, each of them different."""
        ids = np.random.default_rng((number, past)).integers(0, 100, (1, length))
        given = {
            "input_ids": ids,
            "attention_mask": np.ones((1, past + length), np.int64),
            "position_ids": np.arange(past, past + length)[None],
            "encoder_states": floats(1, 20, 64, seed=number),
            "x": floats(1, length, 24, seed=number * 1000 + past),
        }
        return {name: given[name] for name in loaded.inputs if name in given}


DECODERS = [
    Decoder("gpt2_kv_ts14", Sharing.ANY_LENGTH),
    Decoder("gpt2_kv_dynamo20", Sharing.EQUAL_LENGTH),
    Decoder("whisper_decoder_ts17", Sharing.EQUAL_LENGTH),
    Decoder("whisper_decoder_dynamo18", Sharing.EQUAL_LENGTH),
    Decoder("lstm_state_dynamo18", Sharing.EQUAL_LENGTH, {"h0": "h", "c0": "c"}),
]
GPT2, _, WHISPER, _, LSTM = DECODERS


async def run(
    decoder: Decoder, loaded: Model, sequence: Sequence, number: int, lengths: list[int], turns: int = 0
) -> list[Array]:
    """Run the steps of a sequence; between two of them the loop turns at most so often."""
    chance = random.Random(number)
    past, outputs = 0, []
    async with sequence:
        for length in lengths:
            for _ in range(chance.randint(0, turns)):
                await asyncio.sleep(0)
            out = await sequence.infer(decoder.inputs(loaded, past, length, number))
            outputs += out.values()
            past += length
    return outputs


def assert_close(expected: list[Array], got: list[Array]) -> None:
    """Kernels for more rows, or a longer past, may add in another order; what a token is chosen by stays."""
    rtol = 0 if workbench().device.info.is_cpu else 5e-7
    for e, g in zip(expected, got, strict=True):
        np.testing.assert_allclose(g, e, rtol=rtol, atol=1e-5)
        np.testing.assert_array_equal(g.argmax(-1), e.argmax(-1))


def work(count: int, most: int = 8) -> list[list[int]]:
    """The lengths of the steps of some sequences: a prompt, then token by token."""
    chance = random.Random(count)
    return [[chance.choice((1, 2, 3, 5)), *[1] * chance.randrange(2, most)] for _ in range(count)]


@pytest.mark.asyncio
@pytest.mark.parametrize("decoder", DECODERS, ids=lambda d: d.name)
async def test_sequences_that_come_and_go_are_each_as_if_alone(rt: Runtime, decoder: Decoder) -> None:
    """With prompts and lengths of their own, at once or at random; together they take far fewer inferences.

    Sixteen where the number of rows chooses kernels, fewer where NumPy calculates.
    """
    loaded = await rt.load(FOLDER / f"{decoder.name}.onnx")
    steps = work(16 if rt.info.takes_source else 8)
    alone = [await run(decoder, loaded, loaded.sequence(decoder.state), n, x) for n, x in enumerate(steps)]

    for turns, most in ((0, 0.5), (40, 0.8)):
        async with loaded.sequences(decoder.state) as group:
            sequences = [group.sequence() for _ in steps]
            together = await asyncio.gather(
                *(run(decoder, loaded, s, n, x, turns) for n, (s, x) in enumerate(zip(sequences, steps, strict=True)))
            )

        for expected, got in zip(alone, together, strict=True):
            assert_close(expected, got)
        statistics = group.statistics()
        assert statistics.steps == sum(map(len, steps))
        assert statistics.inferences < statistics.steps * most
        assert group.sharing is not None
        assert group.sharing.sharing is decoder.sharing
        assert group.nbytes == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("decoder", [GPT2, WHISPER, LSTM], ids=lambda d: d.name)
async def test_a_cancelled_step_leaves_its_sequence_and_the_others_as_they_were(
    rt: Runtime, either_path: str, decoder: Decoder
) -> None:
    """Whenever it is cancelled, waiting or under way; the step may be tried again, and the ends are the same.

    The paths take turns with when that is.
    """
    loaded = await rt.load(FOLDER / f"{decoder.name}.onnx")
    alone = [await run(decoder, loaded, loaded.sequence(decoder.state), n, [2, 1, 1, 1]) for n in range(4)]

    async with loaded.sequences(decoder.state) as group:
        for turns in some(range(1, 40, 3), 2, int(either_path == CHECKED)):
            got: list[list[Array]] = [[], [], [], []]
            async with contextlib.AsyncExitStack() as stack:
                sequences = [await stack.enter_async_context(group.sequence()) for _ in range(4)]
                for past, length in ((0, 2), (2, 1), (3, 1), (4, 1)):
                    inputs = [decoder.inputs(loaded, past, length, n) for n in range(4)]
                    tasks = [asyncio.ensure_future(s.infer(x)) for s, x in zip(sequences, inputs, strict=True)]
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    for task in tasks[1:]:  # all but one, which goes on and leaves the others where they were
                        task.cancel()
                    done = await asyncio.gather(*tasks, return_exceptions=True)
                    again = [n for n, result in enumerate(done) if isinstance(result, BaseException)]
                    tried = await asyncio.gather(*(sequences[n].infer(inputs[n]) for n in again))
                    for n, out in enumerate(done):
                        got[n] += (tried[again.index(n)] if isinstance(out, BaseException) else out).values()
            for expected, outputs in zip(alone, got, strict=True):
                assert_close(expected, outputs)


@pytest.mark.asyncio
async def test_a_step_copies_nothing_of_the_state_over_the_host() -> None:
    """One write of the inputs and one read of the outputs for each inference, however long the past is."""
    device = SimulatedDevice()
    async with Runtime(device, options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(FOLDER / "gpt2_kv_ts14.onnx")
        async with loaded.sequences() as group:
            sequences = [group.sequence() for _ in range(6)]
            for past in range(9):
                if past == 3:
                    before, inferences = dict(device.faults.calls), group.statistics().inferences
                if past == 6:
                    await sequences.pop().close()
                await asyncio.gather(*(s.infer(GPT2.inputs(loaded, past, 1, n)) for n, s in enumerate(sequences)))
            inferences = group.statistics().inferences - inferences
        calls = device.faults.calls

    assert inferences == 6
    assert (calls["write"] - before["write"], calls["read"] - before["read"]) == (inferences, inferences)


@pytest.mark.asyncio
async def test_state_is_copied_on_the_device_only_when_who_goes_together_changes() -> None:
    """Steps of the same sequences append in place; one that leaves is calculated along until that costs too much."""
    async with Runtime("simulated", options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(FOLDER / "gpt2_kv_ts14.onnx")
        async with loaded.sequences() as group:
            sequences = [group.sequence() for _ in range(4)]
            gathered = []
            for past in range(10):
                if past in (2, 6):
                    await sequences.pop(0).close()
                await asyncio.gather(*(s.infer(GPT2.inputs(loaded, past, 1, n)) for n, s in enumerate(sequences)))
                gathered.append(group.statistics().gathered)

    assert gathered == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.asyncio
async def test_memory_comes_back_when_a_sequence_is_closed() -> None:
    """That of the last one at once; that of one among others with one of the next steps."""
    async with Runtime("simulated", options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(FOLDER / "gpt2_kv_ts14.onnx")
        async with loaded.sequences() as group:
            first, second = group.sequence(), group.sequence()
            await asyncio.gather(*(s.infer(GPT2.inputs(loaded, 0, 3, n)) for n, s in enumerate((first, second))))
            both = group.nbytes
            await first.close()
            await second.infer(GPT2.inputs(loaded, 3, 1, 1))
            one = group.nbytes
            await second.close()
            none, leases = group.nbytes, rt.statistics().memory.leases

    assert 0 < one < both
    assert (none, leases) == (0, 0)


@pytest.mark.asyncio
async def test_a_step_that_fails_leaves_its_sequence_where_it_was_and_holds_nothing(rt: Runtime) -> None:
    """It may be tried again with what is right, and ends as if it had never failed; then its memory comes back."""
    loaded = await rt.load(FOLDER / "gpt2_kv_ts14.onnx")
    expected = await run(GPT2, loaded, loaded.sequence(), 0, [3, 1])

    async with loaded.sequences() as group, group.sequence() as sequence:
        got = [*(await sequence.infer(GPT2.inputs(loaded, 0, 3, 0))).values()]
        held = rt.statistics().memory.leases
        right = GPT2.inputs(loaded, 3, 1, 0)
        with pytest.raises(IndexOutOfRange):
            await sequence.infer({**right, "input_ids": np.full((1, 1), 1 << 20)})
        got += (await sequence.infer(right)).values()

    assert rt.statistics().memory.leases == 0 < held
    assert_close(expected, got)


@pytest.mark.asyncio
async def test_a_failure_of_a_shared_step_is_tried_by_each_step_alone() -> None:
    """A command fails once: no caller hears of it, and all results are right."""
    steps = [1, 1, 1]
    async with Runtime("simulated", options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(FOLDER / "gpt2_kv_ts14.onnx")
        alone = [await run(GPT2, loaded, loaded.sequence(), n, steps) for n in range(3)]

    found = set()
    for command in range(600, 1300, 180):
        device = SimulatedDevice(faults=[Fault("command", command)])
        async with Runtime(device, options=RuntimeOptions(warm=False)) as rt:
            loaded = await rt.load(FOLDER / "gpt2_kv_ts14.onnx")
            async with loaded.sequences() as group:
                got = await asyncio.gather(
                    *(run(GPT2, loaded, group.sequence(), n, steps) for n in range(3)), return_exceptions=True
                )
                found.add(group.statistics().inferences)
            for expected, outputs in zip(alone, got, strict=True):
                assert not isinstance(outputs, BaseException)
                assert_close(expected, outputs)
            assert rt.statistics().memory.leases == 0

    # Three steps together; or one of them each alone; or a first one alone, because trying out had failed.
    assert {3, 5} <= found <= {3, 4, 5}


@pytest.mark.asyncio
async def test_switched_off_each_step_runs_alone_with_the_same_results() -> None:
    """`share_steps`, or no room for a second row."""
    steps = work(5, 5)
    off = RuntimeOptions(warm=False, without={"share_steps"})
    async with Runtime("simulated", options=off) as rt:
        loaded = await rt.load(FOLDER / "gpt2_kv_ts14.onnx")
        async with loaded.sequences() as group:
            without = await asyncio.gather(*(run(GPT2, loaded, group.sequence(), n, x) for n, x in enumerate(steps)))
        alone = group.statistics()
    async with Runtime("simulated", options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(FOLDER / "gpt2_kv_ts14.onnx")
        async with loaded.sequences(max_batch=2) as group:
            pairs = await asyncio.gather(*(run(GPT2, loaded, group.sequence(), n, x) for n, x in enumerate(steps)))
        two = group.statistics()

    assert alone.inferences == alone.steps == two.steps
    assert alone.gathered == 0
    assert two.steps / 2 <= two.inferences < two.steps
    for expected, got in zip(without, pairs, strict=True):
        assert_close(expected, got)


@pytest.mark.asyncio
async def test_a_deadline_that_passes_while_a_step_waits_is_that_steps_alone(rt: Runtime) -> None:
    """It is told so, its sequence is as it was, and the other one goes on."""
    loaded = await rt.load(FOLDER / "gpt2_kv_ts14.onnx")
    alone = await run(GPT2, loaded, loaded.sequence(), 0, [1, 1])

    async with loaded.sequences() as group, group.sequence() as late, group.sequence() as other:
        inputs = [GPT2.inputs(loaded, past, 1, 0) for past in (0, 1)]
        first = await asyncio.gather(late.infer(inputs[0]), other.infer(inputs[0]))
        second = await asyncio.gather(
            late.infer(inputs[1], deadline=0), other.infer(inputs[1]), return_exceptions=True
        )
        third = await late.infer(inputs[1])

    assert isinstance(second[0], DeadlineExceeded)
    assert not isinstance(second[1], BaseException)
    assert_close([*alone, *alone], [first[0]["logits"], third["logits"], first[1]["logits"], second[1]["logits"]])


@pytest.mark.asyncio
async def test_the_steps_of_a_sequence_can_be_iterated_over(rt: Runtime) -> None:
    """Each goes by what the one before gave; of a group, or by itself."""
    loaded = await rt.load(FOLDER / "gpt2_kv_ts14.onnx")

    async def tokens(sequence: Sequence) -> list[int]:
        found: list[int] = []

        def following(outputs: dict[str, Array]) -> dict[str, Array] | None:
            found.append(int(outputs["logits"][0, -1].argmax()))
            inputs = GPT2.inputs(loaded, len(found), 1, 0) | {"input_ids": np.array([found[-1:]])}
            return inputs if len(found) < 5 else None

        async with sequence:
            count = 0
            async for outputs in sequence.steps(GPT2.inputs(loaded, 0, 1, 0), following):
                assert outputs["logits"].shape == (1, 1, 160)
                count += 1
        assert count == 5
        return found

    async with loaded.sequences() as group:
        together = await asyncio.gather(*(tokens(group.sequence()) for _ in range(3)))

    assert together == [await tokens(loaded.sequence())] * 3


def masked(*, additive: bool = False, mixing: bool = False, batch: str = "batch") -> object:
    """One head whose keys are masked, by ones and zeros or by what is added to the scores."""
    nodes = [
        node("k = MatMul(x, w)"), node("present.key = Concat(past_key_values.key, k)", axis=1),
        node("t = Transpose(present.key)", perm=[0, 2, 1]), node("s = MatMul(k, t)"),
        node("m = Unsqueeze(mask, one)"),
        *([node("b = Identity(m)")] if additive else [node("n = Sub(m, unit)"), node("b = Mul(n, large)")]),
        node("a = Add(s, b)"), node("p = Softmax(a)"), node("z = MatMul(p, present.key)"),
        *([node("all = ReduceMean(z, zero)"), node("y = Add(z, all)")] if mixing else [node("y = Identity(z)")]),
    ]  # fmt: skip
    constants = {"w": floats(6, 4, seed=1), "one": i64(1), "zero": i64(0), "unit": np.float32(1),
                 "large": np.float32(1e9)}  # fmt: skip
    inputs = [f"x f32[{batch},seq,6]", f"mask f32[{batch},total]", f"past_key_values.key f32[{batch},past,4]"]
    return model(nodes, inputs, ["y", "present.key"], constants)


async def masked_steps(sequence: Sequence, number: int, lengths: list[int], visible: int = 1) -> list[Array]:
    """Run the steps of a sequence of such a model."""
    past, outputs = 0, []
    async with sequence:
        for length in lengths:
            mask = np.full((1, past + length), visible, np.float32)
            inputs = {"x": floats(1, length, 6, seed=number * 99 + past), "mask": mask}
            outputs.append((await sequence.infer(inputs))["y"])
            past += length
    return outputs


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("source", "visible", "sharing", "why"),
    [
        (masked(), 1, Sharing.ANY_LENGTH, "^$"),
        (masked(additive=True), 0, Sharing.EQUAL_LENGTH, "filled up gives other results: 'y' is off"),
        (masked(mixing=True), 1, Sharing.NONE, "two steps as one are not what they are alone: 'y' is off"),
        (masked(batch="1"), 1, Sharing.NONE, "there is no dim that all of the state and of the outputs have"),
    ],
    ids=["ones and zeros", "added", "rows mix", "one row"],
)
async def test_what_a_model_does_not_allow_is_not_done_and_said(
    rt: Runtime, source: object, visible: int, sharing: Sharing, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A mask that zeros do not mask, or rows that are not independent: results are right all the same."""
    loaded = await rt.load(source)
    lengths = work(6, 6)

    alone = [await masked_steps(loaded.sequence(), n, x, visible) for n, x in enumerate(lengths)]
    async with loaded.sequences() as group:
        sequences = [group.sequence() for _ in lengths]
        together = await asyncio.gather(
            *(masked_steps(s, n, x, visible) for n, (s, x) in enumerate(zip(sequences, lengths, strict=True)))
        )

    for expected, got in zip(alone, together, strict=True):
        assert_close(expected, got)
    assert group.sharing is not None
    assert group.sharing.sharing is sharing
    assert re.search(why, group.sharing.why)
    assert [r.getMessage() for r in caplog.records if r.name.startswith("asyncrt")] == (
        [] if sharing is Sharing.ANY_LENGTH else [f"'test': {group.sharing}"]
    )


@pytest.mark.asyncio
async def test_memory_that_does_not_suffice_for_many_steps_at_once_is_used_by_one_after_the_other() -> None:
    """400 kB of state for each, and as much for what a step leaves; slower than together, and right."""
    source = model([node("next_a = Add(a, x)")], ["x f32[batch,1]", "a f32[batch,100000]"], ["next_a", "y"])
    source.graph.node.append(node("y = ReduceSum(next_a, axes)"))
    source.graph.initializer.append(numpy_helper.from_array(i64(1), "axes"))

    async def one(sequence: Sequence, first: Array) -> list[float]:
        async with sequence:
            outputs = [await sequence.infer({"x": np.full((1, 1), n, np.float32), **given})
                       for n, given in ((1, {"a": first}), (2, {}), (3, {}))]  # fmt: skip
            return [float(out["y"].item()) for out in outputs]

    counts = []
    for limit in (16_000_000, 1_900_000):
        options = RuntimeOptions(warm=False, memory_limit=limit, without={"preallocate"}, idle_release_s=0)
        async with Runtime("simulated", options=options) as rt:
            loaded = await rt.load(source)
            async with loaded.sequences() as group:
                firsts = [np.full((1, 100_000), n, np.float32) for n in range(2)]
                got = await asyncio.gather(*(one(group.sequence(), first) for first in firsts))
            counts.append(group.statistics().inferences)

        assert got == [[100_000, 300_000, 600_000], [200_000, 400_000, 700_000]]
    assert counts == [4, 6]


@pytest.mark.asyncio
async def test_state_that_the_first_step_is_given_is_kept_like_any_other(rt: Runtime) -> None:
    """Beside sequences that begin with nothing, of several rows each, too."""
    loaded = await rt.load(FOLDER / "lstm_state_dynamo18.onnx")
    given = {"h0": floats(1, 2, 32, seed=7), "c0": floats(1, 2, 32, seed=8)}
    xs = [floats(2, 1, 24, seed=n) for n in range(4)]

    async def one(sequence: Sequence, first: Mapping[str, Array]) -> list[Array]:
        async with sequence:
            return [(await sequence.infer({"x": x, **(first if n == 0 else {})}))["y"] for n, x in enumerate(xs)]

    alone = [await one(loaded.sequence(LSTM.state), first) for first in (given, {})]
    async with loaded.sequences(LSTM.state) as group:
        together = await asyncio.gather(one(group.sequence(), given), *(one(group.sequence(), {}) for _ in range(3)))

    for expected, got in zip([alone[0], *[alone[1]] * 3], together, strict=True):
        assert_close(expected, got)


@pytest.mark.asyncio
async def test_a_closed_group_says_so() -> None:
    """Its sequences are closed with it, after a step that is under way."""
    async with Runtime("simulated", options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(FOLDER / "gpt2_kv_ts14.onnx")
        group = loaded.sequences()
        sequence = group.sequence()
        under_way = asyncio.ensure_future(sequence.infer(GPT2.inputs(loaded, 0, 1, 0)))
        for _ in range(6):
            await asyncio.sleep(0)
        await group.close()

        assert (await under_way)["logits"].shape == (1, 1, 160)
        with pytest.raises(asyncrt.SequenceError, match="the group is closed"):
            group.sequence()
        with pytest.raises(asyncrt.SequenceError, match="the sequence is closed"):
            await sequence.infer(GPT2.inputs(loaded, 1, 1, 0))
        with pytest.raises(ValueError, match="max_batch must be an integer of at least 1"):
            loaded.sequences(max_batch=0)
        assert isinstance(group, SequenceGroup)
        assert repr(group) == "<SequenceGroup 0 sequences, 1 steps in 1 inferences>"
