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

files = sorted(p for p in Path(sys.argv[1]).rglob("*") if p.suffix in (".py", ".md", ".toml", ".svg", ".yml"))[:60]
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

HEARS_SPEECH = """
import json
import numpy as np
from silero_vad import get_speech_timestamps, load_silero_vad

t = np.arange(2 * 16000) / 16000
tones = sum(np.sin(2 * np.pi * 120 * k * t) * np.exp(-((120 * k - 600) / 300) ** 2) for k in range(1, 20))
speech = tones * (0.55 + 0.45 * np.sin(2 * np.pi * 3.5 * t))
quiet = np.random.default_rng(0).normal(0, 0.001, 16000)
sound = np.concatenate([quiet, 0.5 * speech / np.abs(speech).max(), quiet]).astype(np.float32)
print(json.dumps(get_speech_timestamps(sound, load_silero_vad(onnx=True))))
"""


def run(program: Path, *command: str) -> Any:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, *command, str(program), str(ROOT / "docs")],
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
    ],
    ids=["rapidocr", "magika", "nudenet", "silero"],
)
def test_a_published_program_gives_the_same_answers(needs: list[str], text: str, tmp_path: Path) -> None:
    """Texts that it reads, kinds of files, things in pictures, and when somebody speaks."""
    missing = [name for name in (*needs, "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    program = tmp_path / "program.py"
    program.write_text(text)

    expected = run(program)

    assert expected
    assert_same(expected, run(program, "-m", "asyncrt.compat"))
