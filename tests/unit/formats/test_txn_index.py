"""Test the transaction index: a real broker's files, what Kafka's own class read in them, round trips and damage."""

from __future__ import annotations

import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.formats.kafka.txn_index import TxnIndex, read_txn_index, write_txn_index
from worlds.kafka_sample import TIERED_STORAGE, golden_files, true_segments

INT64 = st.integers(0, 2**63 - 1)
ABORTS = st.lists(st.tuples(INT64, st.integers(1, 10**6), st.floats(0, 1), INT64), max_size=12)


def packed(*entries: tuple[int, int, int, int], version: int = 0) -> memoryview:
    return memoryview(b"".join(struct.pack(">hqqqq", version, *entry) for entry in entries))


def read_or_refusal(content: bytes, base_offset: int) -> TxnIndex | ArchiveError:
    try:
        return read_txn_index(memoryview(content), base_offset=base_offset)
    except ArchiveError as refused:
        return refused


def test_every_txn_index_of_a_real_broker_round_trips_byte_for_byte() -> None:
    files = list(golden_files(".txnindex"))
    assert len(files) == 45
    for base_offset, content in files:
        assert write_txn_index(read_txn_index(content, base_offset=base_offset)) == content


def test_aborted_transactions_are_those_that_kafka_read() -> None:
    segments = [segment for segment in true_segments("COPY_SEGMENT_FINISHED") if segment["txnindex_present"]]
    assert len(segments) == 45
    for segment in segments:
        content = (TIERED_STORAGE / f"{segment['path']}.txnindex").read_bytes()
        index = read_txn_index(memoryview(content), base_offset=segment["start_offset"])
        columns = (index.producer_ids, index.first_offsets, index.last_offsets, index.last_stable_offsets)
        expected = [(abort["pid"], abort["first"], abort["last"], abort["lso"]) for abort in segment["aborted"]]
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
        assert not index.is_empty


def test_empty_file_is_an_empty_index() -> None:
    assert read_txn_index(memoryview(b""), base_offset=3).is_empty


@given(st.binary(max_size=400), INT64)
def test_any_bytes_parse_or_raise_archive_error(content: bytes, base_offset: int) -> None:
    outcome = read_or_refusal(content, base_offset)
    if isinstance(outcome, ArchiveError):
        assert outcome.reason is Reason.TXN_INDEX_INVALID
        assert 0 <= outcome.position < len(content)
    else:
        assert write_txn_index(outcome) == content


@given(ABORTS)
def test_entries_read_as_an_independent_builder_packed_them(aborts: list[tuple[int, int, float, int]]) -> None:
    last_offsets = list(accumulate(step for _, step, _, _ in aborts))
    entries = [
        (producer_id, int(last * share), last, stable)
        for (producer_id, _, share, stable), last in zip(aborts, last_offsets, strict=True)
    ]
    index = read_txn_index(packed(*entries), base_offset=0)
    columns = (index.producer_ids, index.first_offsets, index.last_offsets, index.last_stable_offsets)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == entries
    assert write_txn_index(index) == packed(*entries)


@pytest.mark.parametrize(
    ("content", "position"),
    [
        (bytes(packed((1, 2, 30, 4))) + b"\0", 34),
        (packed((1, 2, 30, 4), version=1), 0),
        (packed((1, 2, 30, 4), version=-1), 0),
        (packed((1, 2, 30, 4), (1, 2, 30, 4)), 34),
        (packed((1, 2, 30, 4), (1, 2, 29, 4)), 34),
        (packed((1, 31, 30, 4)), 0),
        (packed((1, 2, 19, 4)), 0),
        (packed((-1, 2, 30, 4)), 0),
        (packed((1, -2, 30, 4)), 0),
        (packed((1, 2, 30, 4), (1, 2, 31, -4)), 34),
    ],
)
def test_damage_is_refused_at_its_entry(content: bytes | memoryview, position: int) -> None:
    with pytest.raises(ArchiveError) as refused:
        read_txn_index(memoryview(content), base_offset=20)
    assert (refused.value.reason, refused.value.position) == (Reason.TXN_INDEX_INVALID, position)


def test_descending_transactions_are_not_written() -> None:
    up = read_txn_index(packed((1, 2, 30, 4), (1, 2, 31, 4)), base_offset=0)
    down = TxnIndex(
        producer_ids=up.producer_ids,
        first_offsets=up.first_offsets,
        last_offsets=up.last_offsets[::-1],
        last_stable_offsets=up.last_stable_offsets,
    )
    with pytest.raises(UsageError, match="entry 1"):
        write_txn_index(down)
