"""How is a program told, once, that something of ONNX Runtime has no meaning here?

In the log `asyncrt.compat`, at the level INFO where nothing is lost by it, and WARNING where the program may miss what
it asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

LoggerCallback = Callable[[int, str, str, str, str], object]
"""Gets the severity, the category, the name of a log, the place in the code, and the message."""

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


class _Calling(logging.Handler):
    def __init__(self, callback: LoggerCallback) -> None:
        super().__init__()
        self._callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        severity = max(i for i, level in enumerate(_LEVELS) if i == 0 or level <= record.levelno)
        place = f"{record.pathname}:{record.lineno} {record.funcName}"
        try:
            self._callback(severity, record.name, "Default", place, record.getMessage())
        except Exception:
            self.handleError(record)  # says so on the terminal


def set_callback(callback: LoggerCallback | None) -> None:
    """Call *callback* with each record from now on, instead of the one before; None: call none."""
    for handler in [h for h in LOG.handlers if isinstance(h, _Calling)]:
        LOG.removeHandler(handler)
    if callback is not None:
        LOG.addHandler(_Calling(callback))
