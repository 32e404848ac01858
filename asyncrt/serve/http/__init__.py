"""The door of HTTP."""
