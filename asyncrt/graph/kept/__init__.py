"""Programs of models that were here before: a process that finds its model's reads no ONNX and runs no passes."""
