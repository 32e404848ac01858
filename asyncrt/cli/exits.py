"""The statuses that a command ends with, beside 0, 1 for an error and 2 for a wrong option."""

from __future__ import annotations

INTERRUPTED = 130  # by Ctrl-C, as shells have it
