"""Hold batches that were read from a local tier, to read their records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coldlog.archive.layouts.log_windows import LogWindow
from coldlog.formats.kafka.record_batch import BatchHeaders
from coldlog.formats.kafka.txn_index import TxnIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBatches:
    """Consecutive batches of one segment, and the transactions that are aborted there and in all later segments.
    `topic_id` is as in `LocalLogState`."""

    content: memoryview
    headers: BatchHeaders
    txn_indexes: tuple[TxnIndex, ...]
    topic_id: str | None = None


def cut_batches(
    window: LogWindow, first: int, max_bytes: int, txn_indexes: tuple[TxnIndex, ...], topic_id: str | None
) -> LocalBatches:
    """Return the batches of a window from number `first` on, at most `max_bytes` but at least one."""
    sizes = np.cumsum(window.headers.size_bytes[first:], dtype=np.int64)
    count = max(1, int(np.searchsorted(sizes, max_bytes, side="right")))
    headers = window.headers.slice(first, first + count)
    begin = int(headers.position[0]) - window.position
    content = window.content[begin : begin + int(sizes[count - 1])]
    return LocalBatches(content=content, headers=headers, txn_indexes=txn_indexes, topic_id=topic_id)
