"""The modules in which ONNX Runtime has its C API; programs import exceptions, and now and then classes, from them."""
