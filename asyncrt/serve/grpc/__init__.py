"""The door of gRPC. It has the same answers as that of HTTP, from the same `Service`."""
