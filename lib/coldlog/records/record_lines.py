"""record_lines: how is a record written as a line of JSON?

Keys, values and header values are text where they are UTF-8, else `{"base64": ...}`; null stays null.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence


def content(value: bytes | None) -> object:
    """What stands in the line for a key, a value or the value of a header."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def headers(pairs: Sequence[tuple[str, bytes | None]]) -> object:
    """Names and values, in their order."""
    return [[name, content(value)] for name, value in pairs]
