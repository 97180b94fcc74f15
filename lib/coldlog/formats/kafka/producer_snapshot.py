"""Read and write producer snapshots: the producers and open transactions at the end of a segment.

File, big endian (org.apache.kafka.storage.internals.log.ProducerStateManager, message ProducerSnapshot):

    int16  version      1
    uint32 crc          crc32c of everything after it
    int32  entry_count
    entries, 46 bytes each:
        int64 producer_id
        int16 producer_epoch
        int32 last_sequence
        int64 last_offset                 -1: the producer wrote only a marker
        int32 offset_delta                of the last batch: last minus first sequence
        int64 timestamp_ms
        int32 coordinator_epoch
        int64 current_txn_first_offset    -1: no open transaction

A segment's snapshot describes the state after its last record, before the first record of the next segment.

Refused (PRODUCER_SNAPSHOT_INVALID): another version, a checksum that does not match, a size other than 10 + 46 for each
entry. Values are not checked: the checksum protects them, and Kafka does not check them either.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

from crc32c import crc32c

from coldlog.errors import ArchiveError, Reason, UsageError

PRODUCER_SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">hIi")
_CHECKED_FROM = struct.calcsize(">hI")
_ENTRY = struct.Struct(">qhiqiqiq")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStateEntry:
    """One producer, in the order of the fields on disk."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    current_txn_first_offset: int

    @property
    def has_open_transaction(self) -> bool:
        """The producer's transaction was neither committed nor aborted yet."""
        return self.current_txn_first_offset >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSnapshot:
    """All producers, in the order of the file."""

    entries: tuple[ProducerStateEntry, ...]


def read_producer_snapshot(buffer: memoryview) -> ProducerSnapshot:
    """The producers of a `.snapshot` file."""
    if buffer.nbytes < _HEAD.size:
        expected = f"at least {_HEAD.size} bytes"
        raise _refusal("producer snapshot ends inside its header", 0, expected, f"{buffer.nbytes}")
    version, stored_crc, entry_count = _HEAD.unpack_from(buffer)
    if version != PRODUCER_SNAPSHOT_VERSION:
        raise _refusal("unknown version of a producer snapshot", 0, f"{PRODUCER_SNAPSHOT_VERSION}", f"{version}")
    computed_crc = crc32c(buffer[_CHECKED_FROM:])
    if computed_crc != stored_crc:
        found = f"{computed_crc:#010x}"
        raise _refusal("producer snapshot does not match its checksum", 2, f"{stored_crc:#010x}", found)
    expected_bytes = _HEAD.size + entry_count * _ENTRY.size
    if entry_count < 0 or buffer.nbytes != expected_bytes:
        found = f"{buffer.nbytes} bytes for {entry_count} entries"
        raise _refusal("producer snapshot has a wrong size", _CHECKED_FROM, f"{expected_bytes} bytes", found)
    return ProducerSnapshot(entries=tuple(_read_entries(buffer[_HEAD.size :])))


def write_producer_snapshot(snapshot: ProducerSnapshot) -> bytes:
    """The bytes of a `.snapshot` file, with the checksum."""
    try:
        entries = b"".join(_ENTRY.pack(*astuple(entry)) for entry in snapshot.entries)
    except struct.error as overflow:
        raise UsageError(f"a producer snapshot entry does not fit its fields: {overflow}") from overflow
    checked = struct.pack(">i", len(snapshot.entries)) + entries
    return struct.pack(">hI", PRODUCER_SNAPSHOT_VERSION, crc32c(checked)) + checked


def _read_entries(buffer: memoryview) -> list[ProducerStateEntry]:
    return [
        ProducerStateEntry(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            last_sequence=last_sequence,
            last_offset=last_offset,
            offset_delta=offset_delta,
            timestamp_ms=timestamp_ms,
            coordinator_epoch=coordinator_epoch,
            current_txn_first_offset=current_txn_first_offset,
        )
        for (
            producer_id,
            producer_epoch,
            last_sequence,
            last_offset,
            offset_delta,
            timestamp_ms,
            coordinator_epoch,
            current_txn_first_offset,
        ) in _ENTRY.iter_unpack(buffer)
    ]


def _refusal(message: str, position: int, expected: str, found: str) -> ArchiveError:
    return ArchiveError(Reason.PRODUCER_SNAPSHOT_INVALID, message, position=position, expected=expected, found=found)
