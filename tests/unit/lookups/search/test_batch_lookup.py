"""Test that a batch which the tables name and which has changed is an error, not "later than the archive"."""

from __future__ import annotations

import numpy as np
import pytest

from builders.segment_builder import Batch, Record, build_batch
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.errors import UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.questions import Answers
from coldlog.lookups.search.archive_search import BatchQuestion
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.lookups.served_index import FoundBatch
from coldlog.model.list_offsets import ErrorCode
from stores.memory_store import MemoryStore

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
LOG = "orders-0-AAAAAAAAAAAAAAAAAAAAAA/00000000000000000000-BBBBBBBBBBBBBBBBBBBBBA.log"
SEGMENT = {
    "topic": "orders",
    "topic_id": "A" * 22,
    "partition": 0,
    "start_offset": 0,
    "segment_id": "B" * 21 + "A",
    "objects": [{"kind": "log", "name": LOG, "size_bytes": 1}],
    "served_build_number": 1,
    "segment_leader_epochs": None,
}


def one_record(base_offset: int, timestamp_ms: int, header_ms: int | None = None) -> bytes:
    record = Record(timestamp_ms=timestamp_ms)
    return build_batch(Batch(base_offset=base_offset, records=(record,), stored_max_timestamp_ms=header_ms))


FIRST, ASKED_OF = one_record(0, 5), one_record(1, 1000)


@pytest.mark.parametrize(
    ("log", "error", "offset"),
    [
        (FIRST + ASKED_OF, ErrorCode.NONE, 1),
        (FIRST + ASKED_OF + one_record(2, 2000), ErrorCode.NONE, 1),
        (FIRST + ASKED_OF[:-3], ErrorCode.CORRUPT_MESSAGE, -1),
        (FIRST, ErrorCode.CORRUPT_MESSAGE, -1),
        (FIRST[:-1], ErrorCode.CORRUPT_MESSAGE, -1),
        (b"", ErrorCode.CORRUPT_MESSAGE, -1),
        (FIRST + one_record(7, 2000), ErrorCode.CORRUPT_MESSAGE, -1),
        (FIRST + one_record(1, 10, header_ms=1000), ErrorCode.CORRUPT_MESSAGE, -1),
    ],
    ids=[
        "as it was",
        "grown",
        "cut in the batch",
        "cut before it",
        "cut before that",
        "empty",
        "another batch",
        "a maximum that no record has",
    ],
)
def test_indexed_batch_is_verified_when_it_is_read(log: bytes, error: ErrorCode, offset: int) -> None:
    reader = BatchReader(open_layout=lambda: LocalTieredStorageLayout(store=MemoryStore({LOG: log})), limits=LIMITS)
    batch = FoundBatch(base_offset=1, position=len(FIRST), size_bytes=len(ASKED_OF), counted_from_offset=0)
    answers = Answers.nothing(1)
    BatchQuestion(SEGMENT, batch, np.array([0]), np.array([1000])).answer(reader, answers)
    assert (answers.errors[0], answers.offsets[0]) == (error, offset)


def test_first_batch_of_a_log_is_read() -> None:
    reader = BatchReader(open_layout=lambda: LocalTieredStorageLayout(store=MemoryStore({LOG: FIRST})), limits=LIMITS)
    batch = FoundBatch(base_offset=0, position=0, size_bytes=len(FIRST), counted_from_offset=0)
    answers = Answers.nothing(2)
    BatchQuestion(SEGMENT, batch, np.array([1]), np.array([5])).answer(reader, answers)
    assert (answers.errors.tolist(), answers.offsets.tolist()) == ([0, 0], [-1, 0])


def test_archive_that_cannot_be_opened_is_an_error_of_the_storage() -> None:
    def unusable() -> LocalTieredStorageLayout:
        raise UsageError("the directory is away")

    batch = FoundBatch(base_offset=0, position=0, size_bytes=len(FIRST), counted_from_offset=0)
    answers = Answers.nothing(2)
    reader = BatchReader(open_layout=unusable, limits=LIMITS)
    BatchQuestion(SEGMENT, batch, np.array([1]), np.array([5])).answer(reader, answers)
    assert answers.errors.tolist() == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
    BatchQuestion(SEGMENT, batch, np.array([0]), np.array([5])).answer(None, answers)
    assert answers.errors.tolist() == [ErrorCode.NOT_DECODED, ErrorCode.KAFKA_STORAGE_ERROR]
