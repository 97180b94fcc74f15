"""Read and write leader epoch checkpoints: the first offset of each leader epoch.

ASCII text, one item per line (org.apache.kafka.server.common.CheckpointFile, LeaderEpochCheckpointFile):

    0                           version
    <number of entries>
    <epoch> <start offset>      once for each entry

The newline is that of the broker's platform: LF, CR LF and CR are accepted. Fields are separated by any white space.
The lineage ends with the segment. It begins at the log start offset at the time of the copy: usually long before the
segment, but inside it if records were deleted up to there. Epochs and start offsets both ascend strictly
(LeaderEpochFileCache removes entries that a later one contradicts). Kafka creates the file with 0 bytes: no entries.

Refused (LEADER_EPOCH_CHECKPOINT_INVALID): another version, a count that differs from the number of lines, a line that
is not two numbers, numbers beyond int32 and int64, entries that do not ascend, and a last line without a newline. Kafka
always writes the newline; without it, the number before it may be cut. Kafka's own reader accepts the last two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import lt

from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.formats.kafka.index_entries import INT32_MAX, INT64_MAX

CHECKPOINT_VERSION = 0
_NUMBER = re.compile(rb"[0-9]{1,19}")
_ENTRY_LINES = re.compile(rb"(?:[ \t\x0b\x0c]*+[0-9]{1,19}+[ \t\x0b\x0c]++[0-9]{1,19}+[ \t\x0b\x0c]*+(?:\r\n|\n|\r))*+")
_SHOWN_BYTES = 60
_KEPT_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LeaderEpochEntry:
    """An epoch and its first offset."""

    leader_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderEpochCheckpoint:
    """The leader epochs of a partition, oldest first."""

    entries: tuple[LeaderEpochEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    position: int
    fields: tuple[bytes, ...]


def read_leader_epoch_checkpoint(buffer: memoryview) -> LeaderEpochCheckpoint:
    """The lineage in a `.leader_epoch_checkpoint` file."""
    # Those of a partition's segments are alike.
    return (_read_once if buffer.nbytes <= _KEPT_BYTES else _read)(bytes(buffer))


def _read(text: bytes) -> LeaderEpochCheckpoint:
    lines = text.splitlines(keepends=True)
    if text and not text.endswith((b"\n", b"\r")):
        raise _refusal("leader epoch checkpoint is cut inside a line", len(text), "a newline", "the end of the file")
    if not lines:
        return LeaderEpochCheckpoint(entries=())
    (version,) = _read_numbers(_line(lines, 0), (INT32_MAX,))
    if version != CHECKPOINT_VERSION:
        raise _refusal("unknown version of a leader epoch checkpoint", 0, f"{CHECKPOINT_VERSION}", f"{version}")
    if len(lines) < 2:
        raise _refusal("leader epoch checkpoint has no count", len(text), "a number of entries", "the end of the file")
    count = _line(lines, 1)
    (entry_count,) = _read_numbers(count, (INT32_MAX,))
    if entry_count != len(lines) - 2:
        found = f"{len(lines) - 2} entries"
        raise _refusal("leader epoch checkpoint has a wrong count", count.position, f"{entry_count} entries", found)
    return LeaderEpochCheckpoint(entries=tuple(_read_entries(lines)))


_read_once = lru_cache(maxsize=64)(_read)


def write_leader_epoch_checkpoint(checkpoint: LeaderEpochCheckpoint) -> bytes:
    """The text of a `.leader_epoch_checkpoint` file, with LF as newline."""
    for entry in checkpoint.entries:
        if not (0 <= entry.leader_epoch <= INT32_MAX and 0 <= entry.start_offset <= INT64_MAX):
            raise UsageError(f"a leader epoch entry does not fit its fields: {entry}")
    for before, after in pairwise(checkpoint.entries):
        if not _is_ascending(before, after):
            raise UsageError(f"leader epoch entries must ascend: {before} is followed by {after}")
    lines = [f"{CHECKPOINT_VERSION}", f"{len(checkpoint.entries)}"]
    lines += [f"{entry.leader_epoch} {entry.start_offset}" for entry in checkpoint.entries]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def _line(lines: list[bytes], number: int) -> _Line:
    return _Line(position=sum(map(len, lines[:number])), fields=tuple(lines[number].split()))


def _read_numbers(line: _Line, maxima: tuple[int, ...]) -> list[int]:
    is_numbers = len(line.fields) == len(maxima) and all(_NUMBER.fullmatch(field) for field in line.fields)
    numbers = [int(field) for field in line.fields] if is_numbers else []
    if not is_numbers or any(number > maximum for number, maximum in zip(numbers, maxima, strict=True)):
        expected = "a number" if len(maxima) == 1 else "an epoch and a start offset"
        found = repr(b" ".join(line.fields)[:_SHOWN_BYTES])
        raise _refusal("leader epoch checkpoint has a malformed line", line.position, expected, found)
    return numbers


def _read_entries(lines: list[bytes]) -> list[LeaderEpochEntry]:
    """Read all lines but the first two. A damaged file may have millions: they are checked together, and the first one
    that is wrong is found by halves."""
    numbers = _sound_numbers(lines[2:])
    if numbers is not None:
        return [
            LeaderEpochEntry(leader_epoch=epoch, start_offset=offset) for epoch, offset in zip(*numbers, strict=True)
        ]
    first, end = 2, len(lines)
    while end - first > 3:
        middle = (first + end) // 2
        if _sound_numbers(lines[first:middle]) is None:
            end = middle
        else:
            first = middle - 1  # with the line before, after which the next must ascend
    return list(_iter_entries([_line(lines, number) for number in range(first, end)]))


def _sound_numbers(lines: list[bytes]) -> tuple[list[int], list[int]] | None:
    """Return the epochs and offsets of lines; None if a line is not two numbers, or they do not ascend."""
    text = b"".join(lines)
    if not _ENTRY_LINES.fullmatch(text):
        return None
    numbers = list(map(int, text.split()))
    epochs, offsets = numbers[::2], numbers[1::2]
    is_ascending = all(map(lt, epochs, epochs[1:])) and all(map(lt, offsets, offsets[1:]))
    if not is_ascending or (numbers and (epochs[-1] > INT32_MAX or offsets[-1] > INT64_MAX)):
        return None
    return epochs, offsets


def _iter_entries(lines: list[_Line]) -> Iterator[LeaderEpochEntry]:
    before: LeaderEpochEntry | None = None
    for line in lines:
        leader_epoch, start_offset = _read_numbers(line, (INT32_MAX, INT64_MAX))
        entry = LeaderEpochEntry(leader_epoch=leader_epoch, start_offset=start_offset)
        if before is not None and not _is_ascending(before, entry):
            expected = f"an epoch after {before.leader_epoch} and an offset after {before.start_offset}"
            found = f"epoch {leader_epoch} at {start_offset}"
            raise _refusal("leader epochs do not ascend", line.position, expected, found)
        yield entry
        before = entry


def _is_ascending(before: LeaderEpochEntry, after: LeaderEpochEntry) -> bool:
    return before.leader_epoch < after.leader_epoch and before.start_offset < after.start_offset


def _refusal(message: str, position: int, expected: str, found: str) -> ArchiveError:
    return ArchiveError(
        Reason.LEADER_EPOCH_CHECKPOINT_INVALID, message, position=position, expected=expected, found=found
    )
