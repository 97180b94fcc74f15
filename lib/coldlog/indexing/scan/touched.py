"""Name the partitions in which a listing differs from that of the last run.

If nothing else has changed since then (`preflight`), a run lists, plans and publishes these partitions only. What the
last run found in each directory is in the table `directory_digests`. These rows count only if the digest of the whole
archive that follows from them is that of the last run's witness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from coldlog.archive.inventory.reported_layout import ReportedLayout
from coldlog.archive.layouts.layout import ArchiveLayout, PartitionDirectory
from coldlog.indexing.events.decoded_events import NamedSegment
from coldlog.indexing.scan.due_listings import EVENT_DRIVEN_COLUMNS, event_driven, is_due
from coldlog.indexing.scan.listing import ArchiveDigest, DirectoryDigest, ListingTotals
from coldlog.tables.definitions.directory_digests import DIRECTORY_DIGESTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.table_files import list_table_files, read_whole_file
from coldlog.tables.delta.small_table import Row, SmallTable
from coldlog.tables.delta.warehouse import Warehouse

_MOST_PARTITIONS = 1_000
SEGMENTS_A_NAME = 100
"""A partition is listed by name if it has so many segments for each. A page of a bucket has 170 segments of Kafka's
layout and 330 of Aiven's."""
_TOTALS = ("segments", "log_bytes", "incomplete", "unrecognized")

Partition = tuple[str, int]
"""Topic and partition number."""
KeptDigests = Mapping[str, DirectoryDigest]
"""What the last run found in each directory, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPart:
    """The segments that new events name in a partition, and what the last run found in its directories."""

    segments: frozenset[NamedSegment]
    before: tuple[DirectoryDigest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The partitions that changed, and what was found in the directories of all others. Nothing lies beside these."""

    witness: Mapping[str, str]
    """Of the last run."""
    partitions: frozenset[Partition]
    others: tuple[DirectoryDigest, ...]
    named: Mapping[Partition, NamedPart] = field(default_factory=dict)
    """Of `partitions`, those that may be listed by name (`named_segments`)."""


def read_kept(uri: str, digest: str) -> KeptDigests:
    """Read what the last run found in each directory; nothing if that is not the archive of this `digest`."""
    kept = {each.directory.name: each for each in map(_from_row, _table(uri).read())}
    return kept if ArchiveDigest.of(kept.values(), ()).digest == digest else {}


def not_due(kept: KeptDigests, now_ms: int, hours: float) -> KeptDigests:
    """Return the directories that need not be listed now unless an event names them. `hours`: the period."""
    return {name: each for name, each in kept.items() if not is_due(name, each.listed_ms, now_ms, hours)}


def find_touched(kept: KeptDigests, witness: Mapping[str, str], now: ArchiveDigest) -> Touched | None:
    """Compare a listing with that of the last run, which left the `witness`. None: every partition counts."""
    if not kept or now.totals.unrecognized or now.beside:
        return None
    found = {each.directory.name: each for each in now.directories}
    changed = [name for name in kept.keys() | found.keys() if kept.get(name) != found.get(name)]
    partitions = frozenset(_partition((found.get(name) or kept[name]).directory) for name in changed)
    others = tuple(each for each in now.directories if _partition(each.directory) not in partitions)
    return Touched(witness=witness, partitions=partitions, others=others)


def with_partitions(
    touched: Touched, more: Iterable[Partition], named: Mapping[Partition, frozenset[NamedSegment]]
) -> Touched | None:
    """Add partitions; None if a run over everything costs no more. In those of `named`, only these segments may have
    changed since the directories were listed."""
    partitions = touched.partitions | frozenset(more)
    before: dict[Partition, list[DirectoryDigest]] = {}
    for each in touched.others:
        if _partition(each.directory) in named:
            before.setdefault(_partition(each.directory), []).append(each)
    parts = {
        partition: NamedPart(segments=named[partition], before=tuple(found))
        for partition, found in before.items()
        if all(each.listed_ms is not None for each in found)
        and len(named[partition]) * SEGMENTS_A_NAME <= sum(each.totals.segments for each in found)
    }
    others = tuple(each for each in touched.others if _partition(each.directory) not in partitions)
    # An archive of which nothing is left may be another one, which a run over everything refuses.
    if not any(each.totals.segments for each in others) or len(partitions) > _MOST_PARTITIONS:
        return None
    return replace(touched, partitions=partitions, others=others, named=parts)


def may_be_limited(kept: KeptDigests, known: KeptDigests, most_segments: int) -> bool:
    """Whether a run after the last one can be limited, and at most so many segments are in directories to list."""
    totals = sum((each.totals for each in kept.values()), ListingTotals())
    to_list = totals.segments - sum(each.totals.segments for each in known.values())
    return totals.segments > 0 and not totals.unrecognized and to_list <= most_segments


def in_partitions(directories: Iterable[PartitionDirectory], touched: Touched | None) -> tuple[PartitionDirectory, ...]:
    """Choose the directories that must be listed."""
    return tuple(each for each in directories if touched is None or _partition(each) in touched.partitions)


def listed_again(now: ArchiveDigest, kept: KeptDigests, known: KeptDigests, now_ms: int) -> ArchiveDigest:
    """Note when the directories that had a time were listed again; those that were `known` were not."""
    due = {name for name in kept.keys() - known.keys() if kept[name].listed_ms is not None}
    directories = (replace(each, listed_ms=now_ms) if each.directory.name in due else each for each in now.directories)
    return replace(now, directories=tuple(directories))


def with_seen_times(
    archive: ArchiveDigest, layout: ArchiveLayout, now_ms: int, is_listed: Callable[[PartitionDirectory], bool]
) -> ArchiveDigest:
    """Note as of when the content of the directories that were listed whole with this `layout` is known."""

    def seen_ms(directory: PartitionDirectory) -> int:
        if isinstance(layout, ReportedLayout) and layout.is_reported(directory):
            return layout.created_ms
        return now_ms

    directories = (
        replace(each, seen_ms=seen_ms(each.directory)) if each.seen_ms is None and is_listed(each.directory) else each
        for each in archive.directories
    )
    return replace(archive, directories=tuple(directories))


def keep_digests(uri: str, archive: ArchiveDigest) -> None:
    """Store what a run has found in each directory: the rows are those of the last run only."""
    _table(uri).replace_all([_row(each) for each in archive.directories])


def with_listing_times(archive: ArchiveDigest, warehouse: Warehouse, listed_ms: int) -> ArchiveDigest:
    """Note of each directory that this run has listed whether its partition follows the metadata topic, and when it was
    listed whole. `warehouse` is limited to the partitions that this run has listed; None there: all."""
    of_events = event_driven(_segments(warehouse))
    listed = warehouse.partitions
    directories = (
        replace(each, listed_ms=(each.listed_ms or listed_ms) if _partition(each.directory) in of_events else None)
        if listed is None or _partition(each.directory) in listed
        else each
        for each in archive.directories
    )
    return replace(archive, directories=tuple(directories))


def _segments(warehouse: Warehouse) -> Iterator[pa.Table]:
    few = warehouse.small_table(SEGMENTS, EVENT_DRIVEN_COLUMNS)
    if few is not None:
        yield few
        return
    files = list_table_files(warehouse.data_location(SEGMENTS), SEGMENTS, [])
    for path in files.paths:
        yield read_whole_file(files.location, path, SEGMENTS, EVENT_DRIVEN_COLUMNS)


def _partition(directory: PartitionDirectory) -> Partition:
    return directory.topic, directory.partition


def _table(uri: str) -> SmallTable:
    return SmallTable(uri=uri, table=DIRECTORY_DIGESTS)


def _row(found: DirectoryDigest) -> Row:
    directory, totals = found.directory, found.totals
    where = {name: getattr(directory, name) for name in ("name", "topic", "topic_id", "partition")}
    numbers = {name: getattr(totals, name) for name in _TOTALS}
    # The sum has more than 64 bits.
    times = {"listed_ms": found.listed_ms, "seen_ms": found.seen_ms}
    return where | numbers | {"digest": str(totals.digests)} | times


def _from_row(row: Row) -> DirectoryDigest:
    directory = PartitionDirectory(**{name: row[name] for name in ("name", "topic", "topic_id", "partition")})  # type: ignore[arg-type]
    numbers = {name: int(str(row[name])) for name in _TOTALS}
    times = {name: None if row[name] is None else int(str(row[name])) for name in ("listed_ms", "seen_ms")}
    return DirectoryDigest(
        directory=directory,
        totals=ListingTotals(**numbers, digests=int(str(row["digest"]))),
        **times,
    )
