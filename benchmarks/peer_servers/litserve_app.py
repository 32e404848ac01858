"""MiniLM behind LitServe: padded batches, run by ONNX Runtime. Runs in an environment of its own.

    python litserve_app.py MODEL PORT
"""

import sys

import litserve as ls
import numpy as np
import onnxruntime as ort


class Embeddings(ls.LitAPI):
    def setup(self, device):
        self.session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])

    def decode_request(self, request):
        return request["ids"]

    def batch(self, inputs):
        return padded(inputs)

    def predict(self, batch):
        ids, mask = batch
        return self.session.run(None, {"input_ids": ids, "attention_mask": mask})[0]

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"vector": output.tolist()}


def padded(texts):
    longest = max(map(len, texts))
    ids, mask = np.zeros((len(texts), longest), np.int64), np.zeros((len(texts), longest), np.int64)
    for i, text in enumerate(texts):
        ids[i, : len(text)], mask[i, : len(text)] = text, 1
    return ids, mask


if __name__ == "__main__":
    api = Embeddings(max_batch_size=16, batch_timeout=0.002)
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="error")
