"""Read a timestamp that a person wrote.

It is epoch milliseconds or an ISO 8601 time. A time without a zone is UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from coldlog.errors import UsageError

_INTEGER = re.compile(r"-?[0-9]+")
_MOST_DIGITS = 20


def timestamp_from_text(text: str) -> int:
    """Return epoch milliseconds; any other text raises `UsageError`."""
    if _INTEGER.fullmatch(text):
        if len(text) > _MOST_DIGITS or not -(2**63) <= int(text) < 2**63:
            raise UsageError(f"not a timestamp: {text[:_MOST_DIGITS]}... does not fit in 64 bits")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as unreadable:
        raise UsageError(
            f"not a timestamp: {text!r}; give epoch milliseconds (1767607200000) or ISO 8601 (2026-01-05T10:00:00Z)"
        ) from unreadable
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since_epoch = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1000 + since_epoch.microseconds // 1000
