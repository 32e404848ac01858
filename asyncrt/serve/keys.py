"""Does a caller carry the key?"""

from __future__ import annotations

import hmac


def key_fits(authorization: str, key: bytes) -> bool:
    """Whether what a caller gives as authorization is the key."""
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), key)
