"""Test that a reader answers in time, whatever hangs: what hangs harms no other question, and none after it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coldlog.errors import UsageError
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.reader import OffsetReader
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from tables.scattered_tables import Row, write

NO_HURRY_MS, SOON_MS = 600_000, 1_000


def add(warehouse: Path, topic: str) -> None:
    """Add a partition with one segment, whose record at offset 7 has timestamp 70, in files of its own."""
    place: Row = {"topic": topic, "partition": 0}
    maxima = dict.fromkeys(("running_max_timestamp_ms", "broker_running_max_timestamp_ms"), 70)
    served = {"segment_id": "s", "served_build_number": 1, "served_index_depth": "record", "served_from_offset": 0}
    write(warehouse, SEGMENTS, [{**place, **served, "end_offset": 9, **maxima}])
    write(warehouse, TIME_INDEX, [{**place, "segment_id": "s", "build_number": 1, "offset": 7, "timestamp_ms": 70}])
    facts = {"earliest_offset": 0, "latest_tiered_offset": 9, "max_timestamp_ms": 70}
    write(warehouse, PARTITION_METADATA, [{**place, **facts}])


def hang(file: Path) -> None:
    """Opening a FIFO blocks until something opens it to write."""
    file.unlink()
    os.mkfifo(file)


def free(fifo: Path) -> None:
    """Let whoever waits for the FIFO go on."""
    os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))


@pytest.fixture
def reader(warehouse: Path) -> Iterator[OffsetReader]:
    """Opened before the files of the last topic hang."""
    write(warehouse, OFFSET_INDEX, [])
    add(warehouse, "first")
    before = set(warehouse.glob("time_index/*.parquet"))
    add(warehouse, "last")
    with OffsetReader(warehouse) as opened:
        hung = set(warehouse.glob("time_index/*.parquet")) - before
        for file in hung:
            hang(file)
        yield opened
        for file in hung:
            free(file)


def test_question_whose_tables_hang_times_out_and_others_are_answered(reader: OffsetReader) -> None:
    first, last = ("first", 0, 65, -1, None, NO_HURRY_MS), ("last", 0, 65)
    for _ in range(2):
        answers = reader.list_offsets([first, last], timeout_ms=SOON_MS)
        assert [(row["error"], row["offset"]) for row in answers] == [("NONE", 7), ("REQUEST_TIMED_OUT", None)]
    # What hangs still has the tables that it reads: the reader opens and reads them again.
    rows_read = reader.rows_read
    assert [row["offset"] for row in reader.list_offsets([first])] == [7]
    assert reader.rows_read > rows_read
    assert reader.offset_for_timestamp("first", 0, 65) is not None


def test_what_was_read_in_time_is_kept(reader: OffsetReader) -> None:
    assert [row["offset"] for row in reader.list_offsets([("first", 0, 65)], timeout_ms=NO_HURRY_MS)] == [7]
    rows_read = reader.rows_read
    assert [row["offset"] for row in reader.list_offsets([("first", 0, 66)], timeout_ms=NO_HURRY_MS)] == [7]
    assert reader.rows_read == rows_read


@pytest.mark.parametrize("timeout_ms", [0, -1, 1 << 31, 1.5, "5"])
def test_timeout_that_is_none_is_refused(reader: OffsetReader, timeout_ms: object) -> None:
    with pytest.raises(UsageError, match="timeout_ms is"):
        reader.list_offsets([("first", 0, 65)], timeout_ms=timeout_ms)  # type: ignore[arg-type]  # that is the test


@dataclass(frozen=True, slots=True)
class HangingTier:
    """A local tier that has no partition, and hangs when it is asked for the topic `last`."""

    may_end: threading.Event = field(default_factory=threading.Event)

    def until(self, _: float | None) -> HangingTier:
        return self

    def read_state(self, topic: str, _: int) -> None:
        if topic == "last":
            self.may_end.wait()

    def close(self) -> None:
        pass


def test_as_many_partitions_are_asked_at_once_as_the_reader_has_now(warehouse: Path) -> None:
    write(warehouse, OFFSET_INDEX, [])
    add(warehouse, "first")
    add(warehouse, "last")
    tier = HangingTier()
    options = LookupOptions(local=tier, most_reads_at_once=1)  # type: ignore[arg-type]
    with OffsetReader(warehouse, options) as reader:
        asked = [("last", 0, 65, -1, None, 100), ("first", 0, 65, -1, None, 200)]
        late = ["REQUEST_TIMED_OUT"] * 2
        assert [row["error"] for row in reader.list_offsets(asked, timeout_ms=SOON_MS)] == late
        reader.resize(2)
        asked[1] = ("first", 0, 65, -1, None, NO_HURRY_MS)
        assert [row["offset"] for row in reader.list_offsets(asked, timeout_ms=SOON_MS)] == [None, 7]
        with pytest.raises(UsageError, match="most_reads_at_once is 0"):
            reader.resize(0)
    tier.may_end.set()
