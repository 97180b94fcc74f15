"""Test the aborted transactions of a log without a transaction index, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from builders.segment_builder import Batch, Record, abort_marker, build_segment, commit_marker, is_abort_marker
from coldlog.formats.kafka.record_batch import read_batch_headers
from coldlog.index.aborted_transactions import AbortedTransactions


def data(offset: int, producer_id: int) -> Batch:
    return Batch(
        base_offset=offset, records=(Record(timestamp_ms=1),), is_transactional=True, producer_id=producer_id
    )  # fmt: skip


def marker(offset: int, producer_id: int, *, aborts: bool) -> Batch:
    build = abort_marker if aborts else commit_marker
    return build(offset=offset, timestamp_ms=1, producer_id=producer_id, producer_epoch=0, leader_epoch=0)


LOG = [
    marker(0, 1, aborts=True),
    data(1, 2),
    marker(2, 3, aborts=False),
    data(3, 4),
    marker(4, 2, aborts=True),
    marker(5, 3, aborts=True),
    marker(6, 4, aborts=True),
    data(7, 1),
    marker(8, 1, aborts=True),
    data(9, 5),
]
"""The markers at 0 and 2 end transactions that began in an earlier log; the one at 5 ends none."""


def transactions(*batches: Batch) -> AbortedTransactions:
    found = AbortedTransactions()
    log = memoryview(build_segment(batches))
    headers = read_batch_headers(log, position=0, next_offset=0, is_last=True, max_batch_bytes=1 << 20).headers
    aborts = [batch.base_offset for batch in batches if is_abort_marker(batch)]
    found.add(headers, np.array(aborts, dtype=np.int64))
    return found


def entries(found: AbortedTransactions, open_before: Mapping[int, int]) -> list[tuple[int, int, int, int]]:
    index = found.finish(open_before)
    columns = index.producer_ids, index.first_offsets, index.last_offsets, index.last_stable_offsets
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_transaction_ends_with_its_marker_and_is_stable_up_to_the_oldest_open_one() -> None:
    expected = [(2, 1, 4, 3), (4, 3, 6, 7), (1, 7, 8, 9)]
    assert entries(transactions(*LOG), {}) == expected
    assert entries(transactions(*LOG), {1: -20}) == [(1, -20, 0, 1), *expected]
    assert entries(transactions(*LOG), {3: -7, 6: -5}) == [(2, 1, 4, -5), (4, 3, 6, -5), (1, 7, 8, -5)]


def test_producers_whose_first_marker_is_an_abort_may_have_begun_earlier() -> None:
    assert transactions(*LOG).may_begin_before == {1, 2, 4}
    assert transactions(data(0, 5)).may_begin_before == frozenset()
