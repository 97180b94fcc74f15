"""Test the producer snapshot: a real broker's files, round trips and damage."""

from __future__ import annotations

import struct
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.formats.kafka.producer_snapshot import (
    ProducerSnapshot,
    ProducerStateEntry,
    read_producer_snapshot,
    write_producer_snapshot,
)
from worlds.kafka_sample import golden_files

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.lists(
    st.builds(
        ProducerStateEntry,
        producer_id=INT64,
        producer_epoch=INT16,
        last_sequence=INT32,
        last_offset=INT64,
        offset_delta=INT32,
        timestamp_ms=INT64,
        coordinator_epoch=INT32,
        current_txn_first_offset=INT64,
    ),
    max_size=5,
)
ENTRY = ProducerStateEntry(
    producer_id=7,
    producer_epoch=1,
    last_sequence=41,
    last_offset=99,
    offset_delta=3,
    timestamp_ms=1_700_000_000_000,
    coordinator_epoch=0,
    current_txn_first_offset=-1,
)


def crc32c_bit_by_bit(content: bytes) -> int:
    """CRC-32C computed from its definition, so that the test does not depend on the parser's library."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def packed(checked: bytes, *, version: int = 1) -> memoryview:
    return memoryview(struct.pack(">hI", version, crc32c_bit_by_bit(checked)) + checked)


def read_or_refusal(content: memoryview) -> ProducerSnapshot | ArchiveError:
    try:
        return read_producer_snapshot(content)
    except ArchiveError as refused:
        return refused


def test_every_snapshot_of_a_real_broker_round_trips_byte_for_byte() -> None:
    files = list(golden_files(".snapshot"))
    assert len(files) == 281
    assert sum(len(read_producer_snapshot(content).entries) for _, content in files) > 100
    for _, content in files:
        assert write_producer_snapshot(read_producer_snapshot(content)) == content


def test_real_snapshots_hold_open_transactions_that_began_before_the_last_offset() -> None:
    entries = [entry for _, content in golden_files(".snapshot") for entry in read_producer_snapshot(content).entries]
    still_open = [entry for entry in entries if entry.has_open_transaction]
    assert still_open
    assert all(entry.current_txn_first_offset <= entry.last_offset for entry in still_open)


@given(ENTRIES)
def test_entries_read_as_an_independent_builder_packed_them(entries: list[ProducerStateEntry]) -> None:
    checked = struct.pack(">i", len(entries))
    for entry in entries:
        for field, code in zip(astuple(entry), "qhiqiqiq", strict=True):
            checked += struct.pack(f">{code}", field)
    snapshot = read_producer_snapshot(packed(checked))
    assert snapshot.entries == tuple(entries)
    assert write_producer_snapshot(snapshot) == packed(checked)


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_raise_archive_error(content: bytes) -> None:
    outcome = read_or_refusal(memoryview(content))
    if isinstance(outcome, ArchiveError):
        assert outcome.reason is Reason.PRODUCER_SNAPSHOT_INVALID
    else:
        assert write_producer_snapshot(outcome) == content


@given(st.binary(max_size=120))
def test_any_bytes_with_a_correct_checksum_parse_or_raise_archive_error(checked: bytes) -> None:
    outcome = read_or_refusal(packed(checked))
    if isinstance(outcome, ArchiveError):
        assert outcome.reason is Reason.PRODUCER_SNAPSHOT_INVALID
    else:
        assert write_producer_snapshot(outcome) == packed(checked)


def test_every_flipped_bit_is_found() -> None:
    content = write_producer_snapshot(ProducerSnapshot(entries=(ENTRY,)))
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ArchiveError):
            read_producer_snapshot(memoryview(damaged))


def test_snapshot_cut_anywhere_is_refused() -> None:
    content = memoryview(write_producer_snapshot(ProducerSnapshot(entries=(ENTRY, ENTRY))))
    for size in range(len(content)):
        with pytest.raises(ArchiveError) as refused:
            read_producer_snapshot(content[:size])
        assert 0 <= refused.value.position <= size


def test_negative_count_is_refused() -> None:
    with pytest.raises(ArchiveError, match="wrong size"):
        read_producer_snapshot(packed(struct.pack(">i", -1)))


def test_value_too_large_for_its_field_is_not_written() -> None:
    with pytest.raises(UsageError, match="does not fit"):
        write_producer_snapshot(ProducerSnapshot(entries=(replace(ENTRY, producer_epoch=2**15),)))
