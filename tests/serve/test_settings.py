"""The small file of a model's settings is checked in full, and errors say where."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrt.scheduler.batching import BatchOptions
from asyncrt.serve.errors import WrongSettings
from asyncrt.serve.repository import Repository
from asyncrt.serve.settings import ModelSettings, SequenceSettings


def read(folder: Path, text: str) -> ModelSettings:
    path = folder / "model.toml"
    path.write_text(text)
    return ModelSettings.read(path)


def test_a_file_may_say_everything(tmp_path: Path) -> None:
    """What it leaves out has its default."""
    text = """
        versions = [1, 3]
        warmup = [{batch = 1, seq = 16}, {seq = 32}]
        priority = 5
        timeout_s = 0.5
        [batching]
        max_batch = 8
        max_delay = 0.001
        [sequences]
        state = {past = "present"}
    """

    expected = ModelSettings(
        versions=(1, 3), warmup=({"batch": 1, "seq": 16}, {"seq": 32}), priority=5, timeout_s=0.5,
        batching=BatchOptions(max_batch=8, max_delay=0.001), sequences=SequenceSettings(state={"past": "present"}),
    )  # fmt: skip
    assert expected == read(tmp_path, text)
    assert ModelSettings() == read(tmp_path, "")
    assert ModelSettings(batching=BatchOptions()) == read(tmp_path, "batching = true\nsequences = false")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed = 1", "model.toml: there is no setting 'speed'; there are batching, embeddings,"),
        ("[batching]\nspeed = 1", "model.toml, [batching]: there is no setting 'speed'"),
        ("[batching]\nmax_batch = 0", "model.toml, [batching]: max_batch must be an integer of at least 1, got 0"),
        ("[sequences]\nmax_idle_s = true", "model.toml, [sequences]: max_idle_s must be a number"),
        ("[sequences]\nstate = {a = 1}", "state must be a mapping of texts to texts, got 1"),
        ("batching = 3", "model.toml, [batching]: expected a table, got 3"),
        ("[batching", "model.toml: settings are TOML, which this is not"),
        ('versions = "some"', 'versions must be "latest", "all" or a list of numbers'),
        ("versions = [0]", "each of versions must be an integer of at least 1, got 0"),
        ("warmup = [{n = -1}]", "the size of n must be an integer from 0"),
        ("warmup = 3", "warmup must be a list"),
        ("timeout_s = 0", "timeout_s must be a number"),
    ],
)
def test_a_wrong_file_says_what_is_wrong_and_where(tmp_path: Path, text: str, said: str) -> None:
    """Unknown words are errors as well as values that there cannot be."""
    with pytest.raises(WrongSettings) as caught:
        read(tmp_path, text)

    assert said in str(caught.value)


def test_a_repository_is_what_lies_in_a_folder(tmp_path: Path) -> None:
    """Files by their names, folders with or without versions; nothing else, and nothing outside."""
    for file in ("a.onnx", "a.toml", "b/1/model.onnx", "b/12/model.onnx", "b/x/model.onnx", "b/model.toml",
                 "b/tokenizer.json", "c/model.onnx", "d/readme.txt", "e/1/other.onnx", ".f/model.onnx"):  # fmt: skip
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    repository = Repository(tmp_path)

    assert repository.names() == ["a", "b", "c"]
    assert repository.find("a").settings == tmp_path / "a.toml"
    assert sorted(repository.find("b").files) == [1, 12]
    assert repository.find("b").tokenizer == tmp_path / "b" / "tokenizer.json"
    assert repository.find("c").files == {1: tmp_path / "c" / "model.onnx"}
    assert Repository(tmp_path / "a.onnx", "named").names() == ["named"]
