"""Test that a transaction index may list the aborts that its log shows, and that any other list is refused."""

from __future__ import annotations

import numpy as np
import pytest

from builders.segment_builder import Batch, Record, abort_marker, build_segment, commit_marker
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.txn_index import TxnIndex
from coldlog.index.index_checks import TxnIndexCheck
from coldlog.model.states import IndexDepth
from contents.walked_logs import walk_log

START = 100
Abort = tuple[int, int, int]
"""Producer, first and last offset."""


def data(offset: int, producer_id: int) -> Batch:
    records = (Record(timestamp_ms=1),)
    return Batch(base_offset=offset, records=records, is_transactional=True, producer_id=producer_id)


def ends(offset: int, producer_id: int, *, aborts: bool = True) -> Batch:
    build = abort_marker if aborts else commit_marker
    return build(offset=offset, timestamp_ms=1, producer_id=producer_id, producer_epoch=0, leader_epoch=0)


LOG = [data(100, 1), data(101, 2), ends(102, 1), ends(103, 2, aborts=False), ends(104, 3), data(105, 4), ends(106, 4)]
SHOWN: list[Abort] = [(1, 100, 102), (3, 90, 104), (4, 105, 106)]
"""The transaction of producer 3 began before the log."""


def check(*listed: Abort) -> None:
    """Check an index with these aborts as a build does."""
    columns = np.array([(*abort, abort[2] + 1) for abort in listed], dtype=np.int64).reshape(-1, 4).T
    index = TxnIndex(
        producer_ids=columns[0], first_offsets=columns[1], last_offsets=columns[2], last_stable_offsets=columns[3]
    )
    checked = TxnIndexCheck(index=index, object_name="00000000000000000100.txnindex", start_offset=START)
    walk_log(build_segment(LOG), start_offset=START, depth=IndexDepth.BATCH, window_bytes=200, add=checked.add)
    checked.finish()


def test_aborts_of_the_log_and_an_index_without_entries_are_accepted() -> None:
    check(*SHOWN)
    check()


@pytest.mark.parametrize(
    ("listed", "entry", "expected", "found"),
    [
        (
            [(1, 100, 102), (2, 101, 103), *SHOWN[1:]],
            1,
            "an abort of producer 3 from offset 90 to its marker at 104",
            "an abort of producer 2 from offset 101 to its marker at 103",
        ),
        (SHOWN[:2], 2, "an abort of producer 4 from offset 105 to its marker at 106", "2 entries"),
        ([*SHOWN, (5, 105, 107)], 3, "3 entries", "an abort of producer 5 from offset 105 to its marker at 107"),
        (
            [(1, 101, 102), *SHOWN[1:]],
            0,
            "an abort of producer 1 from offset 100 to its marker at 102",
            "an abort of producer 1 from offset 101 to its marker at 102",
        ),
    ],
    ids=["a committed transaction", "an abort less", "an abort more", "another first offset"],
)
def test_other_aborts_are_refused_with_the_first_entry_that_differs(
    listed: list[Abort], entry: int, expected: str, found: str
) -> None:
    with pytest.raises(ArchiveError) as refused:
        check(*listed)
    assert (refused.value.reason, refused.value.position) == (Reason.TXN_INDEX_INVALID, 34 * entry)
    assert refused.value.message == f"transaction index does not agree with the log in entry {entry}"
    assert (refused.value.expected, refused.value.found) == (expected, found)
