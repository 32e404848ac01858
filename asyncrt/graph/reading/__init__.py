"""From a path or bytes to ONNX's own records and arrays: what a file holds, and nothing of what it means."""
