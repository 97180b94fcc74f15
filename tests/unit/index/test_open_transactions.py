"""Test open transactions at the end of a log against the producer snapshots of a real broker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from builders.segment_builder import Batch, Record, build_batch
from coldlog.formats.kafka.producer_snapshot import read_producer_snapshot
from coldlog.formats.kafka.record_batch import BatchHeaders, read_batch_headers
from coldlog.index.open_transactions import OpenTransactions
from worlds.kafka_sample import TIERED_STORAGE, true_segments


def read_headers(log: bytes) -> BatchHeaders:
    return read_batch_headers(memoryview(log), position=0, next_offset=0, is_last=True, max_batch_bytes=1 << 30).headers


def test_open_transactions_after_each_log_are_those_of_its_snapshot() -> None:
    segments = sorted(
        true_segments("COPY_SEGMENT_FINISHED"),
        key=lambda each: (each["topic"], each["partition"], each["start_offset"]),
    )
    logs: dict[tuple[str, int], OpenTransactions] = {}
    open_count = 0
    for segment in segments:
        files = TIERED_STORAGE / segment["path"]
        found = logs.setdefault((segment["topic"], segment["partition"]), OpenTransactions())
        headers = read_headers(files.with_name(files.name + ".log").read_bytes())
        for first in range(0, len(headers), 7):
            found.add(headers.slice(first, first + 7))
        snapshot = read_producer_snapshot(memoryview(files.with_name(files.name + ".snapshot").read_bytes()))
        known = {e.producer_id: e.current_txn_first_offset for e in snapshot.entries if e.current_txn_first_offset >= 0}
        assert found.first_offsets == known, segment["path"]
        open_count += len(known)
    assert open_count > 30


Step = tuple[int, bool, bool]
"""A batch: producer, whether it is transactional, whether it is a marker."""


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans())), st.integers(1, 9))
def test_open_transactions_do_not_depend_on_the_size_of_the_pieces(steps: list[Step], piece: int) -> None:
    expected: dict[int, int] = {}
    log = b""
    for offset, (producer, is_transactional, ends) in enumerate(steps):
        is_marker = ends and is_transactional
        log += build_batch(
            Batch(
                base_offset=offset,
                records=(Record(timestamp_ms=1),),
                producer_id=producer,
                is_transactional=is_transactional,
                is_control=is_marker,
            )
        )
        if is_marker:
            expected.pop(producer, None)
        elif is_transactional:
            expected.setdefault(producer, offset)
    headers = read_headers(log)
    found = OpenTransactions()
    for first in range(0, len(headers), piece):
        found.add(headers.slice(first, first + piece))
    assert found.first_offsets == expected
