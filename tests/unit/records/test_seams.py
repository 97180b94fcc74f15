"""Test that a log directory whose leader epochs contradict the archive is not read as the rest of its log.

The archive has ten offsets of leader epoch 3. Readers refuse a log that differs there, and do not read it. In drawn
archives the directory is of any replica, after leaders were elected uncleanly.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment, uuid_text_of
from coldlog.errors import UsageError
from coldlog.fetcher import open_fetcher
from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.model.fetch import FetchAnswer, FetchedRecords, FetchErrorCode, FetchFailure
from coldlog.model.states import IndexDepth
from coldlog.records.source.offset_ranges import OffsetRange
from coldlog.records.source.options import SourceOptions, read_options
from coldlog.records.source.spans import resolving
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from drawn_examples import is_sampled, sampled
from tables.scattered_tables import Row, write
from worlds.planned_uploads import PlannedUploads, write_uploads
from worlds.replicas import Log, Replicas
from worlds.sidecar_world import EPOCH_MS, sidecar_world

END, LAST = 10, 19
"""The offset after those in the archive, and the last one in the directory."""
OLDER, KNOWN, NEWER = 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Everything:
    """The filter of a query without conditions."""

    bounds: RecordBounds = field(default_factory=RecordBounds)

    def holds_partition(self, topic: str, partition: int) -> bool:
        return (topic, partition) == ("orders", 0)


def _batches(epochs: Sequence[int], first: int = 0) -> tuple[Batch, ...]:
    records = (Record(timestamp_ms=EPOCH_MS),)
    return tuple(Batch(base_offset=first + at, records=records, leader_epoch=epoch) for at, epoch in enumerate(epochs))


def _options(folder: Path, local: Sequence[int], *, first: int = 0, loses: bool = False) -> SourceOptions:
    """Options to read the archive and a directory, whose offsets from `first` on have these leader epochs."""
    world = sidecar_world(folder, [Segment(batches=_batches([KNOWN] * END))], depths=[IndexDepth.BATCH])
    place: Row = {"topic": "orders", "partition": 0, "topic_id": world.outcomes[0]["topic_id"]}
    facts = {"earliest_offset": 0, "latest_tiered_offset": END - 1, "unserved_ranges": []}
    lineage = {"leader_epoch_lineage": [{"leader_epoch": KNOWN, "start_offset": 0}]}
    shutil.rmtree(world.warehouse / PARTITION_METADATA.name)
    write(world.warehouse, PARTITION_METADATA, [place | facts | lineage])
    write(world.warehouse, QUARANTINE, [])
    directory, segment = folder / "log", Segment(batches=_batches(local, first))
    write_partition(directory, "orders", 0, [segment], topic_id=str(place["topic_id"]))
    write_offset_checkpoint(directory / HIGH_WATERMARKS, {("orders", 0): first + len(local)})
    places = {"warehouse.uri": str(world.warehouse), "archive.uri": str(folder / "archive"), "subscribe": "orders"}
    return read_options({**places, "fetch.log_directory": str(directory), "failondataloss": str(not loses).lower()})


def _ranges(options: SourceOptions) -> list[OffsetRange]:
    with resolving(options) as (_, _, resolver):
        return resolver.resolve(_Everything())  # type: ignore[arg-type]  # needs no Spark


def _fetched(options: SourceOptions, *offsets: int) -> list[FetchAnswer]:
    settings = options.settings
    named = {
        "warehouse.uri": settings.warehouse_uri,
        "archive.uri": settings.archive_uri,
        "fetch.log_directory": settings.fetch.log_directory,
    }
    with open_fetcher([f"{key}={value}" for key, value in named.items()]) as fetcher:
        return [fetcher.fetch_records("orders", 0, offset) for offset in offsets]


CONTRADICTIONS: list[tuple[list[int], int, str]] = [
    ([OLDER] * 20, 0, "offset 9 has leader epoch 3 in the archive, but 2 there"),
    ([KNOWN] * 5 + [NEWER] * 15, 0, "offset 9 has leader epoch 3 in the archive, but 4 there"),
    ([OLDER] * 10, END, "the archive's last leader epoch is 3, but offset 10 has 2 there"),
]


@pytest.mark.parametrize(("local", "first", "named"), CONTRADICTIONS)
def test_directory_of_another_log_is_not_read(tmp_path: Path, local: list[int], first: int, named: str) -> None:
    options = _options(tmp_path, local, first=first)
    with pytest.raises(UsageError, match=f"does not continue the archive of orders-0: {named}. Run run_pipeline when"):
        _ranges(options)
    archived, *later = _fetched(options, 0, END, LAST)
    assert isinstance(archived, FetchedRecords)
    assert [record.offset for record in archived.records] == [*range(END)]
    for answer in later:
        assert isinstance(answer, FetchFailure)
        assert answer.error is FetchErrorCode.OFFSET_OUT_OF_RANGE
        assert f"that is another log: {named}" in answer.message


def test_archive_is_read_alone_on_request(tmp_path: Path) -> None:
    (alone,) = _ranges(_options(tmp_path, [OLDER] * 20, loses=True))
    assert (alone.start, alone.until, alone.local) == (0, END, None)


@pytest.mark.parametrize(
    ("local", "first"),
    [
        ([KNOWN] * 20, 0),
        ([KNOWN] * 10 + [NEWER] * 10, 0),
        ([KNOWN] * 12, 8),
        ([KNOWN] * 10, END),
        ([NEWER] * 10, END),
    ],
)
def test_directory_that_continues_the_archive_is_read(tmp_path: Path, local: list[int], first: int) -> None:
    options = _options(tmp_path, local, first=first)
    (both,) = _ranges(options)
    assert (both.start, both.until, both.local) == (0, END, (END, LAST + 1))
    (later,) = _fetched(options, END)
    assert isinstance(later, FetchedRecords)
    assert [record.offset for record in later.records] == [*range(END, LAST + 1)]


def test_directory_that_ends_before_the_archive_is_not_compared(tmp_path: Path) -> None:
    """It may be of a replica that is behind: nothing is read there."""
    (alone,) = _ranges(_options(tmp_path, [KNOWN] * 5 + [NEWER]))
    assert (alone.start, alone.until, alone.local) == (0, END, None)


Found = list[tuple[int, bytes | None]]
"""Offsets and values."""


def test_no_reading_joins_two_logs(tmp_path: Path) -> None:
    """It has the archive alone, or all of the directory's log, or fails where the archive ends."""
    joined = refused = 0
    for seed in sampled(range(8)):
        replicas = Replicas(seed)
        replicas.live(replicas.random.randint(15, 50))
        if not replicas.uploads:
            continue
        folder = tmp_path / str(seed)
        layout = write_uploads(folder, replicas.uploads)
        uploads = PlannedUploads(uploads=replicas.uploads, layout=layout, depth=IndexDepth.BATCH, has_events=False)
        uploads.publish(folder / "warehouse")
        alone, end, _ = _read(folder, None)
        for at, log in enumerate(each for each in replicas.logs if each):
            directory = _write_log(folder / f"log{at}", log, end, Random(seed))
            found, _, is_refused = _read(folder, directory)
            is_longer = log[-1].last_offset >= end
            expected = [*_records(log)] if is_longer and not is_refused else alone
            assert found == expected, f"seed {seed}, log {at}"
            joined, refused = joined + (is_longer and not is_refused), refused + is_refused
    assert is_sampled() or (joined > 0 and refused > 0), (joined, refused)


def _write_log(directory: Path, log: Log, end: int, random: Random) -> Path:
    """Write the log in segments of one batch, from a random one on that does not begin after the archive's end."""
    count = sum(batch.base_offset <= end for batch in log)
    segments = [Segment(batches=(batch,)) for batch in log]
    topic_id = uuid_text_of("orders")
    write_partition(directory, "orders", 0, segments, first=random.randrange(count), topic_id=topic_id)
    write_offset_checkpoint(directory / HIGH_WATERMARKS, {("orders", 0): log[-1].last_offset + 1})
    return directory


def _read(folder: Path, directory: Path | None) -> tuple[Found, int, bool]:
    """Fetch to the end. Return the records, where the archive ends, and whether a fetch failed."""
    settings = [f"warehouse.uri={folder / 'warehouse'}", f"archive.uri={folder / 'archive'}"]
    local = [] if directory is None else [f"fetch.log_directory={directory}"]
    found: Found = []
    with open_fetcher([*settings, *local]) as fetcher:
        ends = fetcher.partition_ends("orders", 0)
        assert ends is not None
        offset = ends.log_start_offset
        while True:
            answer = fetcher.fetch_records("orders", 0, offset)
            if isinstance(answer, FetchFailure):
                assert "is another log: " in answer.message
                return found, ends.end_offset, True
            found += [(record.offset, record.value) for record in answer.records]
            if answer.next_offset == offset:
                return found, ends.end_offset, False
            offset = answer.next_offset


def _records(log: Log) -> Iterator[tuple[int, bytes | None]]:
    for batch in log:
        if not batch.is_control:
            for placed, record in zip(batch.placed_records, batch.records, strict=True):
                yield placed.offset, record.value
