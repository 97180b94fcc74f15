"""Read and show the time of a request: a time, or a special timestamp by its number or its name."""

from __future__ import annotations

from coldlog.errors import UsageError
from coldlog.model.list_offsets import SpecialTimestamp
from coldlog.runtime.console import human_timestamp
from coldlog.runtime.timestamps import timestamp_from_text

_SPECIAL_NAMES = {special.value: special.name.lower().replace("_", "-") for special in SpecialTimestamp}
"""Names of the special timestamps, as kafka-get-offsets takes them."""
_SPECIALS = {name: value for value, name in _SPECIAL_NAMES.items()}


def requested_time(text: str, option: str) -> int:
    """Return epoch milliseconds or the number of a special timestamp; `option` names the text in errors."""
    if text in _SPECIALS:
        return _SPECIALS[text]
    try:
        timestamp_ms = timestamp_from_text(text)
    except UsageError as unreadable:
        raise UsageError(f"{unreadable}, or {', '.join(_SPECIALS)}") from unreadable
    if timestamp_ms < 0 and str(timestamp_ms) != text:
        # Passed on as a number, it would mean a special timestamp.
        raise UsageError(f"{option} {text}: times before 1970 are not possible; use earliest for the first offset")
    return timestamp_ms


def asked_text(timestamp_ms: int) -> str:
    """Return the time, or the name of the special timestamp."""
    name = _SPECIAL_NAMES.get(timestamp_ms)
    return name or (human_timestamp(timestamp_ms) if timestamp_ms >= 0 else str(timestamp_ms))
