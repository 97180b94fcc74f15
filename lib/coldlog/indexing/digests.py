"""Compute digests of values, to notice that something has changed.

A digest is that of the value's JSON, so it is the same in every process and on every machine.
"""

from __future__ import annotations

import hashlib
import json

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)
"""`json.dumps` would make one for each value."""


def digest_bytes(value: object) -> bytes:
    """The digest of a value that JSON can hold; of other values, such as enums, their text counts."""
    return hashlib.blake2b(_ENCODER.encode(value).encode("ascii"), digest_size=16).digest()


def digest_of(value: object) -> str:
    """`digest_bytes` as text."""
    return digest_bytes(value).hex()
