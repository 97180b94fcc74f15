"""Test that a reading up to `latest` reports the end of a log that the archive had and has lost.

Ten offsets are served. Segments after them may be in quarantine, gone, or not read yet.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable

from builders.segment_builder import Segment
from coldlog.errors import UsageError
from coldlog.fetcher import open_fetcher
from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.model.fetch import FetchAnswer, FetchedRecords, FetchErrorCode, FetchFailure
from coldlog.model.states import IndexDepth
from coldlog.records.source.offset_ranges import OffsetRange
from coldlog.records.source.options import SourceOptions, read_options
from coldlog.records.source.spans import find_spans, require_ends, resolving
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from tables.scattered_tables import Row, write
from worlds.sidecar_world import EPOCH_MS, batch, sidecar_world

END, LAST = 10, 19
"""The offset after the served ones, and the last one of the log."""
OBJECTS = [{"kind": "log", "name": "x", "size_bytes": 1}]
FINISHED: Row = {"state": "COPY_SEGMENT_FINISHED", "objects": OBJECTS}
QUARANTINED: Row = FINISHED | {"index_status": "quarantined"}
GONE: Row = FINISHED | {"index_status": "gone"}
EXPLICIT = {"endingoffsets": '{"orders":{"0":10}}'}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Everything:
    """The filter of a query without conditions but for the offset."""

    bounds: RecordBounds = field(default_factory=RecordBounds)

    def holds_partition(self, topic: str, partition: int) -> bool:
        return (topic, partition) == ("orders", 0)


def _options(
    folder: Path,
    later: Row,
    given: Mapping[str, str] | None = None,
    *,
    to_offset: int | None = LAST,
    is_served: bool = True,
) -> SourceOptions:
    """Options to read a partition that has a later segment up to that offset; None: nothing says where it ends."""
    segment = Segment(batches=tuple(batch(at, EPOCH_MS + at) for at in range(END)))
    world = sidecar_world(folder, [segment], depths=[IndexDepth.BATCH])
    place: Row = {"topic": "orders", "partition": 0, "topic_id": world.outcomes[0]["topic_id"]}
    served = DeltaTable(world.warehouse / SEGMENTS.name).to_pyarrow_table().to_pylist() if is_served else []
    after: Row = {"segment_id": "later", "start_offset": END, "announced_end_offset": to_offset}
    facts = {"from_offset": END, "to_offset": to_offset, "max_timestamp_bound_ms": None}
    ends: Row = {"earliest_offset": 0, "latest_tiered_offset": END - 1} if is_served else {}
    for table, rows in ((SEGMENTS, [*served, place | after | later]), (PARTITION_METADATA, [place | ends])):
        shutil.rmtree(world.warehouse / table.name)
        written = rows if table is SEGMENTS else [rows[0] | {"unserved_ranges": [facts]}]
        write(world.warehouse, table, written)
    write(world.warehouse, QUARANTINE, [])
    places = {"warehouse.uri": str(world.warehouse), "archive.uri": str(folder / "archive"), "subscribe": "orders"}
    return read_options({**places, **(given or {})})


def _ranges(options: SourceOptions, **bounds: int) -> list[OffsetRange]:
    with resolving(options) as (_, _, resolver):
        return resolver.resolve(_Everything(bounds=RecordBounds(**bounds)))  # type: ignore[arg-type]  # needs no Spark


def _is_read(options: SourceOptions, **bounds: int) -> list[tuple[int, int]]:
    return [(each.start, each.until) for each in _ranges(options, **bounds)]


def _fetched(options: SourceOptions, offset: int) -> FetchAnswer:
    settings = options.settings
    with open_fetcher([f"warehouse.uri={settings.warehouse_uri}", f"archive.uri={settings.archive_uri}"]) as fetcher:
        return fetcher.fetch_records("orders", 0, offset)


@pytest.mark.parametrize(
    ("later", "to_offset", "named"),
    [
        (QUARANTINED, LAST, "10 to 19"),
        (GONE, LAST, "10 to 19"),
        (GONE, None, "10 and later ones"),
        (QUARANTINED | {"start_offset": 5}, LAST, "10 to 19"),
    ],
)
def test_fetches_of_lost_offsets_are_corrupt_so_that_no_consumer_resets_its_position(
    tmp_path: Path, later: Row, to_offset: int | None, named: str
) -> None:
    options = _options(tmp_path, later, to_offset=to_offset)
    for offset in (END, LAST):
        answer = _fetched(options, offset)
        assert isinstance(answer, FetchFailure)
        assert (answer.error, answer.resume_offset) == (FetchErrorCode.CORRUPT_MESSAGE, None)
        assert f"the archive has offsets 0 to 9; offsets {named} are lost" in answer.message
    after = _fetched(options, LAST + 1)
    assert isinstance(after, FetchFailure)
    is_out_of_range = after.error is FetchErrorCode.OFFSET_OUT_OF_RANGE
    assert is_out_of_range is (to_offset is not None)


@pytest.mark.parametrize("later", [QUARANTINED, GONE])
@pytest.mark.parametrize(("to_offset", "named"), [(LAST, "10 to 19"), (None, "10 and later ones")])
def test_segments_that_are_lost_at_the_end_are_data_loss(
    tmp_path: Path, later: Row, to_offset: int | None, named: str
) -> None:
    options = _options(tmp_path, later, to_offset=to_offset)
    missing = (
        f"offsets of orders-0 are missing: {named} are in no served segment; see coldlog.archive_problems; the archive "
        "has offsets 0 to 9; failOnDataLoss=false"
    )
    with pytest.raises(UsageError, match=missing):
        _ranges(options)
    with pytest.raises(UsageError, match=missing):
        require_ends(find_spans(options))


@pytest.mark.parametrize(
    "later",
    [
        FINISHED | {"index_status": "pending"},
        FINISHED | {"index_status": "incomplete"},
        GONE | {"objects": []},
        GONE | {"state": "DELETE_SEGMENT_FINISHED"},
        QUARANTINED | {"start_offset": 5, "announced_end_offset": 9},
        QUARANTINED | {"start_offset": 5, "announced_end_offset": None},
    ],
)
def test_segments_that_are_new_deleted_or_served_by_others_are_no_loss(tmp_path: Path, later: Row) -> None:
    """A segment that was announced, and never listed, may still be on its way to a replica of the bucket."""
    options = _options(tmp_path, later)
    assert _is_read(options) == [(0, END)]
    require_ends(find_spans(options))
    answer = _fetched(options, END)
    assert isinstance(answer, FetchedRecords)
    assert (answer.records, answer.next_offset) == ((), END)


def test_a_partition_with_a_segment_in_quarantine_alone_is_not_read_as_empty(tmp_path: Path) -> None:
    options = _options(tmp_path, QUARANTINED, is_served=False)
    with pytest.raises(UsageError, match="10 to 19 are in no served segment; .*; no offset can be read"):
        _ranges(options)


@pytest.mark.parametrize("given", [EXPLICIT, {"endingtimestamp": str(EPOCH_MS + 9)}, {"failondataloss": "false"}])
def test_offsets_after_the_end_of_a_reading_are_not_asked_for(tmp_path: Path, given: dict[str, str]) -> None:
    options = _options(tmp_path, QUARANTINED, given)
    assert _is_read(options) == [(0, 9 if "endingtimestamp" in given else END)]
    require_ends(find_spans(options))


def test_times_after_the_served_records_may_be_those_of_lost_ones(tmp_path: Path) -> None:
    options = _options(tmp_path, QUARANTINED, {"endingtimestamp": str(EPOCH_MS + 15)})
    with pytest.raises(UsageError, match="10 to 19 are in no served segment"):
        _ranges(options)


def test_filters_of_offsets_ask_for_fewer(tmp_path: Path) -> None:
    options = _options(tmp_path, QUARANTINED)
    assert _is_read(options, to_offset=END - 1) == [(0, END)]
    assert _is_read(options, from_offset=LAST + 1) == []
    for bounds, named in (({"to_offset": 12}, "10 to 12"), ({"from_offset": 15}, "15 to 19")):
        with pytest.raises(UsageError, match=f"missing: {named} are in no served segment"):
            _ranges(options, **bounds)
