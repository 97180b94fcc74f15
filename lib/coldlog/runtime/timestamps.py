"""Read a timestamp that a person wrote.

It is epoch milliseconds, an ISO 8601 time (without a zone: UTC), `now`, or a time before now: `2 hours ago`. Refused:
everything else, and numbers that are a date without dashes (`20231115`), because they are hardly meant as milliseconds.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from coldlog.errors import UsageError

_INTEGER = re.compile(r"-?[0-9]+")
_BASIC_DATE = re.compile(r"(?P<year>(?:19|20)[0-9]{2})(?P<month>0[1-9]|1[0-2])(?P<day>0[1-9]|[12][0-9]|3[01])")
_ISO = re.compile(r"[0-9]{4}-.+")
_AGO = re.compile(r"(?P<count>[0-9]{1,9}) *(?P<unit>[a-z]+) +ago", re.IGNORECASE)
_NAMED_ZONE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]+ *(?P<name>[A-Za-z][A-Za-z_]+(?:/[A-Za-z_/]+)?)")
_MOST_DIGITS = 20
_UNITS_MS = {"second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_SHORT_UNITS = {"s": "second", "sec": "second", "m": "minute", "min": "minute", "h": "hour", "d": "day", "w": "week"}
_EXPECTED = "give epoch milliseconds (1767607200000), ISO 8601 (2026-01-05T10:00:00Z), or 2 hours ago"


def timestamp_from_text(text: str, now_ms: int | None = None) -> int:
    """Return epoch milliseconds; any other text raises `UsageError`. `now_ms` replaces the clock."""
    if _INTEGER.fullmatch(text):
        return _milliseconds(text)
    if text.lower() == "now" or _AGO.fullmatch(text):
        return _before(text, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    moment, meant = None, ""
    try:
        moment = datetime.fromisoformat(text.upper()) if _ISO.fullmatch(text) else None
    except ValueError as wrong:
        meant = f"{wrong}; "
    if moment is None:
        ago = _AGO.fullmatch(f"{text} ago")
        meant = f"did you mean '{text} ago'? " if ago is not None and _unit_of(ago) in _UNITS_MS else meant
        if zone := _NAMED_ZONE.fullmatch(text):
            meant = f"give the zone {zone['name']} as an offset such as +01:00; "
        raise UsageError(f"not a timestamp: {text!r}; {meant}{_EXPECTED}")
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since_epoch = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1000 + since_epoch.microseconds // 1000


def _milliseconds(text: str) -> int:
    if len(text) > _MOST_DIGITS or not -(2**63) <= int(text) < 2**63:
        raise UsageError(f"not a timestamp: {text[:_MOST_DIGITS]}... does not fit in 64 bits; {_EXPECTED}")
    date = _BASIC_DATE.fullmatch(text)
    if date:
        raise UsageError(f"not a timestamp: {text} looks like a date; give it as {'-'.join(date.groups())}")
    return int(text)


def _before(text: str, now_ms: int) -> int:
    ago = _AGO.fullmatch(text)
    if ago is None:
        return now_ms
    unit = _unit_of(ago)
    if unit not in _UNITS_MS:
        raise UsageError(f"not a timestamp: {text!r}; give seconds, minutes, hours, days or weeks before now")
    return now_ms - int(ago["count"]) * _UNITS_MS[unit]


def _unit_of(ago: re.Match[str]) -> str:
    unit = ago["unit"].lower()
    return _SHORT_UNITS.get(unit, unit.removesuffix("s"))
