"""MiniLM behind BentoML's adaptive batching, with ONNX Runtime. Runs in an environment of its own.

    MINILM=MODEL bentoml serve bentoml_app:Embeddings --port PORT
"""

import os

import bentoml
import numpy as np
import onnxruntime as ort


@bentoml.service(workers=1, traffic={"timeout": 60, "external_queue": False})
class Embeddings:
    def __init__(self) -> None:
        self.session = ort.InferenceSession(os.environ["MINILM"], providers=["CPUExecutionProvider"])

    @bentoml.api(batchable=True, max_batch_size=16, max_latency_ms=200, route="/predict")
    def predict(self, ids: list[list[int]]) -> list[list[float]]:
        longest = max(map(len, ids))
        tokens, mask = np.zeros((len(ids), longest), np.int64), np.zeros((len(ids), longest), np.int64)
        for i, text in enumerate(ids):
            tokens[i, : len(text)], mask[i, : len(text)] = text, 1
        return self.session.run(None, {"input_ids": tokens, "attention_mask": mask})[0].tolist()
