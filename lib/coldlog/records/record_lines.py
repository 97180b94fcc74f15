"""Write a record as a line of JSON.

Keys, values and header values are text if they are UTF-8, else `{"base64": ...}`. A missing value is null.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from coldlog.model.fetch import FetchedRecord


def record_row(record: FetchedRecord) -> dict[str, object]:
    """Return the JSON object of a record, without topic and partition."""
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": record.timestamp_type.value,
        "leader_epoch": record.leader_epoch,
        "key": content(record.key),
        "value": content(record.value),
        "headers": headers(record.headers),
    }


def content(value: bytes | None) -> object:
    """Return the JSON value of a key, a value or a header value."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def headers(pairs: Sequence[tuple[str, bytes | None]]) -> object:
    """Return names and values, in their order."""
    return [[name, content(value)] for name, value in pairs]
