"""Texts become vectors, as the OpenAI API has it, where a tokeniser lies beside the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import openai
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from asyncrt.layout import Array

from ..builders import model, node
from .running import Running, call, running

WORDS = {"[UNK]": 0, "red": 1, "green": 2, "blue": 3, "fish": 4}
VECTORS = np.random.default_rng(0).normal(size=(len(WORDS), 8)).astype(np.float32)
TEXTS = ["red fish", "green", "blue green red fish fish"]


def write(folder: Path, pooled: bool) -> Path:
    """A model that looks words up: a vector for each, or their mean; and its tokeniser."""
    nodes = [node("tokens = Gather(vectors, input_ids)"), node("seen = Identity(attention_mask)")]
    if pooled:
        nodes.append(node("mean = ReduceMean(tokens, one)", keepdims=0))
    made = model(
        nodes, ["input_ids i64[batch,seq]", "attention_mask i64[batch,seq]"], ["tokens", "seen", *["mean"] * pooled],
        {"vectors": VECTORS, "one": np.array([1], np.int64)},
    )  # fmt: skip
    onnx.save(made, folder / "words.onnx")
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "words.onnx"


def expected(text: str) -> Array:
    """The vector of a text: the mean of its words', of length 1."""
    mean = VECTORS[[WORDS[word] for word in text.split()]].mean(axis=0)
    found: Array = mean / np.linalg.norm(mean)
    return found


@pytest.fixture(scope="module", params=["pooled by the model", "pooled here"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Running]:
    path = write(tmp_path_factory.mktemp("words"), request.param == "pooled by the model")
    with running(path, "--grpc-port", "-1", "--batched") as found:
        yield found


def test_the_client_of_openai_gets_vectors(server: Running) -> None:
    """Of texts and of tokens, as it asks by itself and as plain numbers, in their order, with tokens counted."""
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none") as client:
        one = client.embeddings.create(model="words", input=TEXTS[0])
        several = client.embeddings.create(model="words", input=TEXTS, encoding_format="float")
        tokens = client.embeddings.create(model="words", input=[[1, 4], [2]])
        names = [m.id for m in client.models.list()]

    np.testing.assert_allclose(one.data[0].embedding, expected(TEXTS[0]), rtol=1e-5)
    for text, data in zip(TEXTS, several.data, strict=True):
        np.testing.assert_allclose(data.embedding, expected(text), rtol=1e-5)
    assert several.usage.prompt_tokens == 8
    for text, data in zip(TEXTS, tokens.data, strict=False):
        np.testing.assert_allclose(data.embedding, expected(text), rtol=1e-5)
    assert names == ["words"]


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({"model": "words"}, 400, "input must be a text"),
        ({"model": "words", "input": [1, "red"]}, 400, "input must be texts"),
        ({"model": "words", "input": ""}, 400, "without tokens"),
        ({"model": "words", "input": [[99]]}, 400, "index 99 is out of range"),
        ({"model": "words", "input": "red", "encoding_format": "int8"}, 400, "float or base64"),
        ({"model": "words", "input": "red", "dimensions": 4}, 400, "dimensions"),
        ({"model": "other", "input": "red"}, 404, "there is no model"),
    ],
)
def test_errors_are_those_of_the_openai_api(server: Running, asked: object, status: int, said: str) -> None:
    """With a message and a type."""
    found, _, answer = call(server, "/v1/embeddings", asked)

    assert found == status
    assert said in answer["error"]["message"]
    assert answer["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
