"""Nodes that are written in other words when a model is loaded: old versions of operators, and operators of domains
that ONNX itself does not define. What comes out are nodes that asyncrt has operators for, so that every pass, fusion,
skip rule and kernel applies to them.
"""
