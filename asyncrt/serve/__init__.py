"""A server of models: the Open Inference Protocol over HTTP and gRPC. `asyncrt serve` starts it.

Nothing else of asyncrt imports this room but the command. What messages mean is in pure functions
(`protocol`, and the `codec.py` of each door); who may come in is decided in `admission.py`; what is served is in
`repository.py`, `models.py` and `served_model.py`; and the two doors, `http` and `grpc`, both ask `service.py`.
"""
