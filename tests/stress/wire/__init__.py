"""What comes over the wire: messages that are wrong in every way, and callers who go in the midst of it."""
