"""Compare what an archive lists with events and stored rows: few segments in this process, many in Spark tasks.

The rules are those of `differences` in both. A task has all rows of some partitions, because what a segment is can
depend on events of others: on the deletion of its partition, and on announcements that may be lost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coldlog.archive.layouts.layout import UnrecognizedObject
from coldlog.indexing.events.announced_segments import EVENT_COLUMNS, FOLDED_KINDS, fold_events
from coldlog.indexing.events.positions import (
    Positions,
    lost_offsets,
    positions_of,
    read_limited_events,
    read_positions,
    with_completeness,
)
from coldlog.indexing.scan.differences import (
    FROM_EVENTS,
    STORED_COLUMNS,
    UPDATED_COLUMNS,
    find_differences,
    without_unknown,
)
from coldlog.indexing.scan.listed_rows import LISTED_SCHEMA, SEGMENT_COLUMNS, is_unlisted
from coldlog.indexing.scan.listing import IS_UNLISTED
from coldlog.indexing.scan.named_segments import NamedListing
from coldlog.indexing.scan.settled_segments import Compared, without_settled
from coldlog.model.states import IndexStatus
from coldlog.runtime.spark.arrow_frames import frame_of, unmeasured_batches
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse

_MOST_ROWS = 30_000
"""This process compares at most so many segments one by one, and so many events; that takes some seconds."""
_SEGMENTS_A_TASK = 20_000
_PARTITION = ("topic", "partition")
_TYPES = SEGMENTS.column_types | {"change": "STRING"}
_FOUND_COLUMNS = (*SEGMENTS.key, "topic_id", "change", *UPDATED_COLUMNS)
_FOUND_DDL = ", ".join(f"{name} {_TYPES[name]}" for name in _FOUND_COLUMNS)
_FOUND_SCHEMA = pa.schema(
    [
        pa.field("change", pa.string()) if name == "change" else SEGMENTS.arrow_schema.field(name).with_nullable(True)
        for name in _FOUND_COLUMNS
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """What a comparison needs beside the rows. `unlisted` are rows of directories that cannot be listed;
    `partitions` are those of the run, None: all."""

    is_mirror: bool
    positions: Positions
    partitions: frozenset[tuple[str, int]] | None
    unlisted: Sequence[Row] = field(default=())

    @property
    def lost(self) -> Mapping[int, Sequence[int]]:
        return lost_offsets(self.positions)

    def left(self, stored: pa.Table, events: pa.Table, listed: pa.Table) -> Compared:
        """Return what must be compared row by row. If announcements were lost, that is everything: the other ones say
        which segments the lost ones may have named."""
        told = with_completeness(events, self.positions)
        return Compared.all_of(stored, told, listed) if self.lost else without_settled(stored, told, listed)

    def differences(self, left: Compared, of_named: frozenset[tuple[str, int]] = frozenset()) -> list[Row]:
        """Return the rows to write, with their `change`."""
        announced = fold_events(left.events.to_pylist())
        if self.partitions is not None:
            announced = {key: row for key, row in announced.items() if key[:2] in self.partitions}
        found = find_differences(
            left.listed.to_pylist(),
            announced,
            left.stored.to_pylist(),
            is_mirror=self.is_mirror,
            governed=left.governed | of_named,
            lost=self.lost,
        )
        return without_unknown(found, self.unlisted) if self.unlisted else found


class ComparedHere:
    """The comparison of few segments. `left` was compared one by one; `some_stand` says that there are other listed
    segments; `unrecognized` are rows of `LISTED_SCHEMA`, `differences` the rows to write."""

    def __init__(
        self,
        warehouse: Warehouse,
        left: Compared,
        differences: list[Row],
        *,
        some_stand: bool,
        unrecognized: list[Row],
    ) -> None:
        self._warehouse = warehouse
        self._left = left
        self._differences = differences
        self._some_stand = some_stand
        self._unrecognized = unrecognized

    @classmethod
    def of(
        cls,
        warehouse: Warehouse,
        batches: Sequence[pa.RecordBatch],
        *,
        is_mirror: bool,
        named: NamedListing | None = None,
    ) -> ComparedHere | None:
        """Compare; None if that is too much for this process, or if events were lost and some segments were listed by
        name. `batches` have what was listed, those of `named` too."""
        stored = warehouse.small_table(SEGMENTS, STORED_COLUMNS) if named is None else named.stored
        events = None if stored is None else read_limited_events(warehouse, EVENT_COLUMNS)
        if stored is None or events is None:
            return None
        listed = pa.Table.from_batches(batches, LISTED_SCHEMA)
        is_segment = pc.is_null(listed["unrecognized_name"])
        unrecognized = listed.filter(pc.invert(is_segment)).to_pylist()
        is_all = warehouse.partitions is None
        comparison = _Comparison(
            is_mirror=is_mirror,
            positions=positions_of(events) if is_all else read_positions(warehouse, has_values=False),
            partitions=warehouse.partitions,
            unlisted=list(filter(is_unlisted, unrecognized)),
        )
        of_named = frozenset[tuple[str, int]]()
        if named is not None:
            if comparison.lost:
                return None
            stored, events, of_named = named.compared(events)
        left = comparison.left(stored, events, listed.select(SEGMENT_COLUMNS).filter(is_segment))
        if max(len(left.events), len(left.stored)) > _MOST_ROWS:
            return None
        found = comparison.differences(left, of_named)
        some_stand = left.some_stand or named is not None
        return cls(warehouse, left, found, some_stand=some_stand, unrecognized=unrecognized)

    def forget(self) -> None:
        """Nothing is held elsewhere."""

    def counts(self) -> dict[str, int]:
        """How many segments are `new`, `changed` and `gone`."""
        return Counter(row["change"] for row in self._differences)

    def unlisted(self, most: int) -> list[tuple[str, str]]:
        """Names of directories that cannot be listed, in order, and why."""
        rows = [(row["unrecognized_name"], row["unrecognized_why"]) for row in self._unrecognized if is_unlisted(row)]
        return sorted(rows)[:most]

    def lost_count(self) -> int:
        """How many segments are gone whose deletion was not announced."""
        gone = [row for row in self._differences if row["change"] == "gone"]
        return sum(row["state_source"] != FROM_EVENTS or not row["state"].startswith("DELETE") for row in gone)

    def is_another_archive(self) -> bool:
        """Whether the tables have segments, and none of them is listed."""
        if self._some_stand:
            return False
        stored = self._left.stored
        is_there = pc.not_equal(stored["index_status"], IndexStatus.GONE.value)
        known = stored["segment_id"].filter(is_there)
        return len(known) > 0 and not pc.any(pc.is_in(known, self._left.listed["segment_id"])).as_py()

    def write(self) -> None:
        """Write the differences to `segments`."""
        new = [row for row in self._differences if row["change"] == "new"]
        others = [row for row in self._differences if row["change"] != "new"]
        if new:
            self._warehouse.append(SEGMENTS, [{name: row.get(name) for name in SEGMENTS.column_names} for row in new])
        if others:
            self._warehouse.merge(SEGMENTS, others, update=UPDATED_COLUMNS)

    def write_unrecognized(self, beside: Sequence[UnrecognizedObject]) -> int:
        """Update `unrecognized_objects` to what is listed and to what is `beside` the directories; count the rows."""
        wanted = {stray.name: _unrecognized_row(stray) for stray in beside}
        for row in self._unrecognized:
            values = (row["unrecognized_name"], row["unrecognized_bytes"], row["unrecognized_why"])
            wanted[values[0]] = dict(zip(("name", "size_bytes", "why"), values, strict=True))
        stored = self._warehouse.rows_if_small(UNRECOGNIZED_OBJECTS, UNRECOGNIZED_OBJECTS.column_names)
        if stored is None:
            return _write_unrecognized(self._warehouse, self._warehouse.local(UNRECOGNIZED_OBJECTS, wanted.values()))
        self._warehouse.merge(UNRECOGNIZED_OBJECTS, [row for row in wanted.values() if row not in stored])
        no_more = [{"name": row["name"]} for row in stored if row["name"] not in wanted]
        self._warehouse.delete_matching(UNRECOGNIZED_OBJECTS, no_more)
        return len(wanted)


class ComparedInTasks:
    """The comparison of many segments, which executors hold until `forget`. `listed` has `LISTED_SCHEMA`, and
    `segment_count` segments."""

    def __init__(
        self, warehouse: Warehouse, listed: DataFrame, *, is_mirror: bool, has_unlisted: bool, segment_count: int
    ) -> None:
        self._warehouse = warehouse
        self._listed = listed
        self._segments = listed.where(F.col("unrecognized_name").isNull()).select(*SEGMENT_COLUMNS)
        places = listed.where(IS_UNLISTED).select(*_PARTITION, "topic_id")
        comparison = _Comparison(
            is_mirror=is_mirror,
            positions=read_positions(warehouse, has_values=False),
            partitions=warehouse.partitions,
            unlisted=places.toArrow().to_pylist() if has_unlisted else (),
        )
        sides = {"stored": warehouse.read(SEGMENTS), "event": _events(warehouse), "listed": self._segments}
        rows = [frame.select(*_PARTITION, F.struct(*_SIDES[name]).alias(name)) for name, frame in sides.items()]
        together = rows[0].unionByName(rows[1], allowMissingColumns=True).unionByName(rows[2], allowMissingColumns=True)
        cores = warehouse.spark.sparkContext.defaultParallelism
        task_count = cores * max(1, math.ceil(segment_count / (cores * _SEGMENTS_A_TASK)))
        compared = together.repartition(task_count, *_PARTITION).mapInArrow(
            partial(_compare_in_task, comparison), schema=_FOUND_DDL
        )
        self._differences = compared.persist()
        with unmeasured_batches(warehouse.spark):
            counted = self._differences.groupBy("change").count().collect()
        self._counts = {row["change"]: row["count"] for row in counted}

    def forget(self) -> None:
        """Drop the rows."""
        self._differences.unpersist()

    def counts(self) -> dict[str, int]:
        """How many segments are `new`, `changed` and `gone`."""
        return self._counts

    def unlisted(self, most: int) -> list[tuple[str, str]]:
        """Names of directories that cannot be listed, in order, and why."""
        rows = self._listed.where(IS_UNLISTED).orderBy("unrecognized_name").limit(most).collect()
        return [(row["unrecognized_name"], row["unrecognized_why"]) for row in rows]

    def lost_count(self) -> int:
        """How many segments are gone whose deletion was not announced."""
        is_announced = (F.col("state_source") == FROM_EVENTS) & F.col("state").startswith("DELETE")
        return self._differences.where((F.col("change") == "gone") & ~is_announced).count()

    def is_another_archive(self) -> bool:
        """Whether the tables have segments, and none of them is listed."""
        is_there = F.col("index_status") != IndexStatus.GONE.value
        known = self._warehouse.read(SEGMENTS).where(is_there).select("segment_id")
        listed = self._segments.select("segment_id")
        return bool(known.head(1)) and not known.join(listed, "segment_id", "left_semi").head(1)

    def write(self) -> None:
        """Write the differences to `segments`."""
        counts = self.counts()
        new, other_count = counts.get("new", 0), sum(counts.values()) - counts.get("new", 0)
        if new:
            unknown = [name for name in SEGMENTS.column_names if name not in self._differences.columns]
            nulls = {name: F.lit(None).cast(SEGMENTS.column_types[name]) for name in unknown}
            rows = self._differences.where(F.col("change") == "new").withColumns(nulls)
            self._warehouse.append(SEGMENTS, rows, count=new)
        if other_count:
            others = self._differences.where(F.col("change") != "new")
            self._warehouse.merge(SEGMENTS, others, update=UPDATED_COLUMNS, count=other_count)

    def write_unrecognized(self, beside: Sequence[UnrecognizedObject]) -> int:
        """Update `unrecognized_objects` to what is listed and to what is `beside` the directories; count the rows."""
        in_directories = self._listed.where(F.col("unrecognized_name").isNotNull()).select(
            F.col("unrecognized_name").alias("name"),
            F.col("unrecognized_bytes").alias("size_bytes"),
            F.col("unrecognized_why").alias("why"),
        )
        at_the_root = self._warehouse.local(UNRECOGNIZED_OBJECTS, list(map(_unrecognized_row, beside)))
        return _write_unrecognized(self._warehouse, in_directories.unionByName(at_the_root))


_SIDES = {"stored": STORED_COLUMNS, "event": EVENT_COLUMNS, "listed": SEGMENT_COLUMNS}
"""What a task gets: rows of `segments`, events, and listed segments. Each row has one of them."""


def _events(warehouse: Warehouse) -> DataFrame:
    """The events that tell of segments, and can be of the partitions to which the warehouse is limited.

    A tombstone's key has no topic, only its id. It gets the topic of other events; without one, nothing is known about
    its segment.
    """
    events = _limited_events(warehouse).select(*EVENT_COLUMNS).where(F.col("event_kind").isin(*FOLDED_KINDS))
    topics = events.groupBy("topic_id").agg(F.max("topic").alias("named_topic"))
    named = events.join(F.broadcast(topics), "topic_id").withColumn("topic", F.coalesce("topic", "named_topic"))
    return named.where(F.col("topic").isNotNull())


def _limited_events(warehouse: Warehouse) -> DataFrame:
    """The driver reads a small table itself, and gives Spark only the rows of the partitions of the run."""
    if warehouse.partitions is None:
        return warehouse.read(SEGMENT_EVENTS)
    stored = read_limited_events(warehouse, EVENT_COLUMNS)
    if stored is not None:
        return frame_of(warehouse.spark, stored)
    topics = sorted({topic for topic, _ in warehouse.partitions})
    numbers = sorted({number for _, number in warehouse.partitions})
    is_of_topics = F.col("topic").isin(topics) | F.col("topic").isNull()
    return warehouse.read(SEGMENT_EVENTS).where(F.col("partition").isin(numbers) & is_of_topics)


def _compare_in_task(comparison: _Comparison, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compare the rows of some partitions."""
    there = [batch for batch in batches if len(batch)]
    if not there:
        return
    rows = pa.Table.from_batches(there)
    stored, events, listed = (
        pa.Table.from_struct_array(rows[name].filter(pc.is_valid(rows[name])).combine_chunks()) for name in _SIDES
    )
    found = comparison.differences(comparison.left(stored, events, listed))
    yield from pa.Table.from_pylist(found, _FOUND_SCHEMA).to_batches()


def _unrecognized_row(stray: UnrecognizedObject) -> Row:
    return {"name": stray.name, "size_bytes": stray.size_bytes, "why": stray.why}


def _write_unrecognized(warehouse: Warehouse, rows: DataFrame) -> int:
    """Update `unrecognized_objects` to the rows; return their number."""
    found = rows.dropDuplicates(["name"]).persist()
    stored = warehouse.read(UNRECOGNIZED_OBJECTS)
    count = found.count()
    new = found.join(stored, list(UNRECOGNIZED_OBJECTS.column_names), "left_anti")
    no_more = stored.join(found, ["name"], "left_anti")
    if new.head(1):
        warehouse.merge(UNRECOGNIZED_OBJECTS, new)
    if no_more.head(1):
        warehouse.delete_keys(UNRECOGNIZED_OBJECTS, no_more)
    found.unpersist()
    return count
