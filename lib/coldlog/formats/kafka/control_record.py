"""Read the type of a control record: whether a transaction was committed or aborted.

A control batch has one record. Its key has an int16 version and an int16 type: 0 abort, 1 commit; other types are for
the brokers' own log. The key is read from the records section of the batch, which Kafka writes uncompressed
(org.apache.kafka.common.record.ControlRecordType).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.varint import MAX_VARINT_BYTES, MAX_VARLONG_BYTES, read_number

_KEY_BYTES = 4


class ControlRecordType(IntEnum):
    """The type of a control record."""

    ABORT = 0
    COMMIT = 1
    OTHER = -1


def read_control_record_type(buffer: npt.NDArray[np.uint8], start: int, end: int, position: int) -> ControlRecordType:
    """The type of a control batch's first record; `position` is the batch's, for errors."""
    at = start
    for max_bytes, skip in ((MAX_VARINT_BYTES, 1), (MAX_VARLONG_BYTES, 0), (MAX_VARINT_BYTES, 0)):
        _, at = read_number(buffer, at, end, max_bytes)
        if at < 0:
            raise _refusal(position, "a number that does not end")
        at += skip
    key_bytes, at = read_number(buffer, at, end, MAX_VARINT_BYTES)
    if at < 0 or key_bytes < _KEY_BYTES or at + key_bytes > end:
        raise _refusal(position, f"a key of {int(key_bytes)} bytes")
    kind = int.from_bytes(buffer[at + 2 : at + _KEY_BYTES].tobytes(), "big", signed=True)
    return ControlRecordType(kind) if kind in (0, 1) else ControlRecordType.OTHER


def _refusal(position: int, found: str) -> ArchiveError:
    return ArchiveError(
        Reason.CONTROL_RECORD_INVALID,
        "control batch has no marker",
        position=position,
        expected=f"a key of at least {_KEY_BYTES} bytes",
        found=found,
    )
