"""What has a runtime done so far?"""

from __future__ import annotations

import attrs


@attrs.define
class Counters:
    """What a runtime has done so far."""

    requests: int = 0
    plans: int = 0
    replays: int = 0
    launches: int = 0
    skipped: int = 0
    cancelled: int = 0
    failed: int = 0
