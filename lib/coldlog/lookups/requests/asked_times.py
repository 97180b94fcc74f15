"""Read what a single request asks: a time, or a special timestamp by its number or its name, and the other fields."""

from __future__ import annotations

import argparse

from coldlog.errors import UsageError
from coldlog.model.arguments import whole_number
from coldlog.model.list_offsets import DEFAULT_TIMEOUT, NEWEST_VERSION, UNKNOWN_EPOCH, SpecialTimestamp
from coldlog.model.states import IsolationLevel
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
        from difflib import get_close_matches

        near = get_close_matches(text, _SPECIALS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{unreadable}, or {', '.join(_SPECIALS)}{meant}") from unreadable
    if timestamp_ms < 0 and str(timestamp_ms) != text:
        # Passed on as a number, it would mean a special timestamp.
        raise UsageError(f"{option} {text}: times before 1970 are not possible; use earliest for the first offset")
    return timestamp_ms


def asked_text(timestamp_ms: int) -> str:
    """Return the time, or the name of the special timestamp."""
    name = _SPECIAL_NAMES.get(timestamp_ms)
    return name or (human_timestamp(timestamp_ms) if timestamp_ms >= 0 else str(timestamp_ms))


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the other fields of a request of ListOffsets."""
    group = parser.add_argument_group("fields of the request; --requests has them as columns")
    group.add_argument(
        "--leader-epoch", type=int, metavar="N", help="current leader epoch, for fencing (default: none)"
    )
    group.add_argument(
        "--isolation-level", choices=[level.value for level in IsolationLevel], help="(default: lookup.isolation_level)"
    )
    group.add_argument("--timeout-ms", type=int, metavar="MS", help="answer REQUEST_TIMED_OUT after this time")
    group.add_argument(
        "--api-version", type=int, metavar="N", help=f"version of ListOffsets (default: {NEWEST_VERSION})"
    )


def request_fields(arguments: argparse.Namespace) -> tuple[object, ...]:
    """Return leader epoch, isolation level, timeout and version of the request; `UsageError` if they are none, or if
    they are given with --requests. Without the options, these are the defaults."""
    limits = {"leader_epoch": (0, 2**31), "timeout_ms": (1, 2**31), "api_version": (0, 2**15)}
    given = {name: getattr(arguments, name, None) for name in (*limits, "isolation_level")}
    if arguments.requests and any(value is not None for value in given.values()):
        raise UsageError("with --requests, the fields of a request are columns of the file")
    for name, (least, limit) in limits.items():
        if given[name] is not None:
            whole_number(f"--{name.replace('_', '-')}", given[name], least, limit)
    defaults = {"leader_epoch": UNKNOWN_EPOCH, "timeout_ms": DEFAULT_TIMEOUT, "api_version": NEWEST_VERSION}
    known = {name: defaults.get(name) if value is None else value for name, value in given.items()}
    return tuple(known[name] for name in ("leader_epoch", "isolation_level", "timeout_ms", "api_version"))
