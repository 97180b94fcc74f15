"""List only those segments of a partition that new events name.

In a bucket, a partition of 60,000 segments has 360 pages. An event names one segment, whose objects are one request. So
a run lists a partition by name if

- it follows the metadata topic (`due_listings`), and new events are the only reason to look at it,
- each of these events names a segment, and where it begins is known from the events or from its row,
- it has at least `touched.SEGMENTS_A_NAME` segments for each name: less than a page of a bucket has.

What is not named is as the last run has found it. A partition is listed whole after all if a named segment is not
there and no event says that it is deleted, or if an object with the name of a segment is no part of it.

The new digest of a directory follows from the kept one: less the rows of the named segments as stored, and with those
that are listed. If that is wrong, the next whole listing has another digest, and everything is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.archive.layouts.layout import ArchiveLayout, ListsByName, PartitionDirectory, SegmentKey, name_of
from coldlog.errors import ArchiveError
from coldlog.indexing.events.decoded_events import NamedSegment
from coldlog.indexing.scan.differences import FROM_EVENTS, STORED_COLUMNS
from coldlog.indexing.scan.listed_rows import listed_row, rows_of, stored_as_listed
from coldlog.indexing.scan.listing import DirectoryDigest, ListingTotals
from coldlog.indexing.scan.touched import Partition, Touched
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse

_KEY = ("topic", "partition", "topic_id", "segment_id")
_LISTED_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedListing:
    """What was listed by name. `stored` has all rows of the limited warehouse, in `STORED_COLUMNS`; `keys` are the
    named segments, by partition."""

    stored: pa.Table
    keys: Mapping[Partition, frozenset[NamedSegment]]
    batches: Sequence[pa.RecordBatch]
    digests: Sequence[DirectoryDigest]

    def whole(self, directories: Iterable[PartitionDirectory]) -> tuple[PartitionDirectory, ...]:
        """Return the directories that are left to list."""
        return tuple(each for each in directories if (each.topic, each.partition) not in self.keys)

    def compared(self, events: pa.Table) -> tuple[pa.Table, pa.Table, frozenset[tuple[str, int]]]:
        """Leave out rows and events of segments that are not named, in partitions that were listed by name. Also return
        the topic ids and partitions to which events say what belongs."""
        parts = pa.array([_joined(each) for each in self.keys], pa.string())
        named = pa.array(
            [
                _joined((*partition, each.topic_id, each.segment_id))
                for partition, segments in self.keys.items()
                for each in segments
            ],
            pa.string(),
        )

        def is_left(rows: pa.Table) -> pa.ChunkedArray:
            is_other = pc.invert(pc.is_in(_joined_columns(rows, _KEY[:2]), parts))
            # An event of a whole partition names no segment.
            keys = _joined_columns(rows, _KEY)
            return pc.or_(is_other, pc.or_(pc.is_null(keys), pc.is_in(keys, named)))

        is_kept = is_left(self.stored)
        others = self.stored.filter(pc.invert(is_kept))
        announced = pc.and_(
            pc.equal(others["state_source"], FROM_EVENTS), pc.is_valid(others["announced_start_offset"])
        )
        governed = others.filter(announced).group_by(["topic_id", "partition"]).aggregate([]).to_pylist()
        of_partitions = frozenset((row["topic_id"], row["partition"]) for row in governed)
        return self.stored.filter(is_kept), events.filter(is_left(events)), of_partitions


def list_named(
    warehouse: Warehouse, layout: ArchiveLayout, directories: Iterable[PartitionDirectory], touched: Touched | None
) -> NamedListing | None:
    """List the partitions of `touched.named` by name; None if there are none, or too many rows for this process."""
    if touched is None or not touched.named or not isinstance(layout, ListsByName):
        return None
    stored = warehouse.small_table(SEGMENTS, STORED_COLUMNS)
    if stored is None:
        return None
    ids = pa.array({each.segment_id for part in touched.named.values() for each in part.segments}, pa.string())
    rows = {_key(row): row for row in stored.filter(pc.is_in(stored["segment_id"], ids)).to_pylist()}
    there: dict[Partition, set[PartitionDirectory]] = {}
    for directory in directories:
        there.setdefault((directory.topic, directory.partition), set()).add(directory)
    wanted: list[_Wanted] = []
    for partition, part in touched.named.items():
        found = [_Wanted.of(each, part.segments, rows) for each in part.before]
        known = [each for each in found if each is not None]
        if len(known) == len(found) and there.get(partition) == {each.before.directory for each in known}:
            wanted += known

    with ThreadPoolExecutor(_LISTED_AT_ONCE) as threads:
        listed = list(threads.map(_Wanted.list_by_name, wanted, repeat(layout)))
    failed = {each.partition for each, found in zip(wanted, listed, strict=True) if found is None}
    kept = [found for each, found in zip(wanted, listed, strict=True) if found and each.partition not in failed]
    partitions = {each.partition for each in wanted} - failed
    if not partitions:
        return None
    return NamedListing(
        stored=stored,
        keys={each: touched.named[each].segments for each in partitions},
        batches=[batch for batch, _ in kept],
        digests=[digest for _, digest in kept],
    )


DirectoryListed = tuple[pa.RecordBatch, DirectoryDigest]
"""Rows of `LISTED_SCHEMA`, and the digest of the whole directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A directory to list by name: what the last run found in it, the keys, those of segments that must be there, and
    the rows of the segments that were listed before."""

    before: DirectoryDigest
    keys: frozenset[SegmentKey]
    expected: frozenset[SegmentKey]
    rows: tuple[Row, ...]

    @classmethod
    def of(
        cls, before: DirectoryDigest, segments: Iterable[NamedSegment], rows: Mapping[tuple[object, ...], Row]
    ) -> _Wanted | None:
        """None if it is not known where a segment begins."""
        directory = before.directory
        keys, expected, known = set[SegmentKey](), set[SegmentKey](), []
        for segment in segments:
            if segment.topic_id != directory.topic_id:
                continue
            row = rows.get((directory.topic, directory.partition, directory.topic_id, segment.segment_id))
            start_offset = segment.start_offset
            if row is not None:
                if start_offset not in (None, row["start_offset"]):
                    return None
                start_offset = row["start_offset"]
            if start_offset is None:
                return None
            key = (start_offset, segment.segment_id)
            keys.add(key)
            if not segment.is_deleted:
                expected.add(key)
            if row is not None and row["is_listed"]:
                known.append(stored_as_listed(row))
        return cls(before=before, keys=frozenset(keys), expected=frozenset(expected), rows=tuple(known))

    @property
    def partition(self) -> Partition:
        return self.before.directory.topic, self.before.directory.partition

    def list_by_name(self, layout: ListsByName) -> DirectoryListed | None:
        """None if the directory must be listed whole."""
        if not self.keys:
            return rows_of(self.before.directory, []), self.before
        try:
            listing = layout.list_named(self.before.directory, [name_of(each) for each in self.keys])
        except ArchiveError:
            return None
        found = {(each.start_offset, each.segment_id) for each in listing.segments}
        if listing.unrecognized or not self.expected <= found:
            return None
        batch = rows_of(self.before.directory, map(listed_row, listing.segments))
        totals = self.before.totals - ListingTotals.of(rows_of(self.before.directory, self.rows))
        return batch, replace(self.before, totals=totals + ListingTotals.of(batch))


def _key(row: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in _KEY)


def _joined(values: Iterable[object]) -> str:
    return "\n".join(map(str, values))


def _joined_columns(rows: pa.Table, names: Iterable[str]) -> pa.ChunkedArray:
    """As `_joined`, of each row; NULL if one of the values is."""
    return pc.binary_join_element_wise(*(pc.cast(rows[name], pa.string()) for name in names), "\n")
