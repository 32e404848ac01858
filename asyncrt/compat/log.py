"""How is a program told, once, that something of ONNX Runtime has no meaning here?

In the log `asyncrt.compat`, at the level INFO where nothing is lost by it, and WARNING where the program may miss what
it asked for.
"""

from __future__ import annotations

import logging

LOG = logging.getLogger("asyncrt.compat")
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_said: set[str] = set()


def once(text: str, level: int = logging.INFO) -> None:
    """Write *text* to the log unless this process has."""
    if text not in _said:
        _said.add(text)
        LOG.log(level, text)


def set_severity(severity: int) -> None:
    """Show what is at least as severe: 0 is everything, 4 only what is fatal."""
    LOG.setLevel(_LEVELS[severity])
