"""Read a broker's offset checkpoint: one offset for each partition of a log directory.

UTF-8 text, one item per line (org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile):

    0                               version
    <number of entries>
    <topic> <partition> <offset>    once for each entry

`log-start-offset-checkpoint` and `replication-offset-checkpoint` (the high watermarks) are such files. Kafka writes a
new file and renames it, so a reader always finds a complete file. A file of 0 bytes has no entries.

Refused (OFFSET_CHECKPOINT_INVALID): another version, a count that differs from the number of lines, a line that is not
a topic and two numbers, numbers beyond int32 and int64, a partition that is named twice, and a last line without a
newline: the number before it may be cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from coldlog.errors import ArchiveError, Reason

OFFSET_CHECKPOINT_VERSION = 0
_ENTRY = re.compile(rb"(?P<topic>[^\s]+)\s+(?P<partition>[0-9]{1,10})\s+(?P<offset>[0-9]{1,19})\s*")
_NUMBER = re.compile(rb"([0-9]{1,10})\s*")
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1
_SHOWN_BYTES = 60

OffsetCheckpoint = Mapping[tuple[str, int], int]
"""Offsets by topic and partition."""


def read_offset_checkpoint(buffer: memoryview) -> OffsetCheckpoint:
    """The offsets of the file."""
    text = bytes(buffer)
    if not text:
        return {}
    if not text.endswith((b"\n", b"\r")):
        raise _refusal("offset checkpoint is cut inside a line", len(text), "a newline", "the end of the file")
    lines = text.splitlines()
    version = _read_number(lines, 0)
    if version != OFFSET_CHECKPOINT_VERSION:
        raise _refusal("unknown version of an offset checkpoint", 0, f"{OFFSET_CHECKPOINT_VERSION}", f"{version}")
    entry_count, entries = _read_number(lines, 1), lines[2:]
    if entry_count != len(entries):
        found = f"{len(entries)} entries"
        raise _refusal("offset checkpoint has a wrong count", len(lines[0]), f"{entry_count} entries", found)
    offsets: dict[tuple[str, int], int] = {}
    for number, line in enumerate(entries, start=3):
        partition, offset = _read_entry(line, number)
        if partition in offsets:
            raise _refusal(f"offset checkpoint names a partition again in line {number}", -1, "once", str(partition))
        offsets[partition] = offset
    return offsets


def _read_number(lines: list[bytes], index: int) -> int:
    matched = _NUMBER.fullmatch(lines[index]) if index < len(lines) else None
    if matched is None:
        found = repr(lines[index][:_SHOWN_BYTES]) if index < len(lines) else "the end of the file"
        raise _refusal(f"offset checkpoint has a malformed line {index + 1}", -1, "a number", found)
    return int(matched[1])


def _read_entry(line: bytes, number: int) -> tuple[tuple[str, int], int]:
    matched = _ENTRY.fullmatch(line)
    try:
        if matched and int(matched["partition"]) <= _INT32_MAX and int(matched["offset"]) <= _INT64_MAX:
            return (matched["topic"].decode(), int(matched["partition"])), int(matched["offset"])
    except UnicodeDecodeError:
        pass
    expected, found = "a topic, a partition and an offset", repr(line[:_SHOWN_BYTES])
    raise _refusal(f"offset checkpoint has a malformed line {number}", -1, expected, found)


def _refusal(message: str, position: int, expected: str, found: str) -> ArchiveError:
    return ArchiveError(Reason.OFFSET_CHECKPOINT_INVALID, message, position=position, expected=expected, found=found)
