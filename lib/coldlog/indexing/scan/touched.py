"""Name the partitions in which a listing differs from that of the last run.

If nothing else has changed since then (`preflight`), a run lists, plans and publishes these partitions only. What the
last run found in each directory is in the table `directory_digests`. These rows count only if the digest of the whole
archive that follows from them is that of the last run's witness.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from coldlog.archive.layouts.layout import PartitionDirectory
from coldlog.errors import ColdlogError
from coldlog.indexing.scan.listing import ArchiveDigest, DirectoryDigest, ListingTotals
from coldlog.tables.definitions.directory_digests import DIRECTORY_DIGESTS
from coldlog.tables.delta.locations import local_folder
from coldlog.tables.delta.small_table import Row, SmallTable

_MOST_PARTITIONS = 1_000
_TOTALS = ("segments", "log_bytes", "incomplete", "unrecognized")

Partition = tuple[str, int]
"""Topic and partition number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The partitions that changed, and what was found in the directories of all others. Nothing lies beside these."""

    witness: Mapping[str, str]
    """Of the last run."""
    partitions: frozenset[Partition]
    others: tuple[DirectoryDigest, ...]


def find_touched(uri: str, witness: Mapping[str, str], digest: str, now: ArchiveDigest) -> Touched | None:
    """Compare a listing with that of the last run, whose `digest` its `witness` has. None: every partition counts."""
    if now.totals.unrecognized or now.beside:
        return None
    stored = {each.directory.name: each for each in map(_from_row, _table(uri).read())}
    if ArchiveDigest.of(stored.values(), ()).digest != digest:
        return None
    found = {each.directory.name: each for each in now.directories}
    changed = [name for name in stored.keys() | found.keys() if stored.get(name) != found.get(name)]
    partitions = frozenset(_partition((found.get(name) or stored[name]).directory) for name in changed)
    others = tuple(each for each in now.directories if _partition(each.directory) not in partitions)
    return Touched(witness=witness, partitions=partitions, others=others)


def with_partitions(touched: Touched, more: Iterable[Partition]) -> Touched | None:
    """Add partitions; None if a run over everything costs no more."""
    partitions = touched.partitions | frozenset(more)
    others = tuple(each for each in touched.others if _partition(each.directory) not in partitions)
    # An archive of which nothing is left may be another one, which a run over everything refuses.
    if not any(each.totals.segments for each in others) or len(partitions) > _MOST_PARTITIONS:
        return None
    return replace(touched, partitions=partitions, others=others)


def may_be_limited(uri: str, most_segments: int) -> bool:
    """Whether a run after the last one can be limited, and that one found at most so many segments."""
    rows = _table(uri).read()
    segments, unrecognized = (sum(int(str(row[name])) for row in rows) for name in ("segments", "unrecognized"))
    return 0 < segments <= most_segments and not unrecognized


def in_partitions(directories: Iterable[PartitionDirectory], touched: Touched | None) -> tuple[PartitionDirectory, ...]:
    """Choose the directories that must be listed."""
    return tuple(each for each in directories if touched is None or _partition(each) in touched.partitions)


def keep_digests(uri: str, archive: ArchiveDigest) -> None:
    """Store what a run has found in each directory. A table in a folder that is damaged, as after a loss of power, is
    made anew: its rows are those of the last run only."""
    rows: Sequence[Row] = [_row(each) for each in archive.directories]
    table = _table(uri)
    try:
        table.change(lambda _: rows)
    except ColdlogError:
        folder = local_folder(table.location)
        if folder is None:
            raise
        shutil.rmtree(folder, ignore_errors=True)
        table.change(lambda _: rows)


def _partition(directory: PartitionDirectory) -> Partition:
    return directory.topic, directory.partition


def _table(uri: str) -> SmallTable:
    return SmallTable(uri=uri, table=DIRECTORY_DIGESTS)


def _row(found: DirectoryDigest) -> Row:
    directory, totals = found.directory, found.totals
    where = {name: getattr(directory, name) for name in ("name", "topic", "topic_id", "partition")}
    # The sum has more than 64 bits.
    return where | {name: getattr(totals, name) for name in _TOTALS} | {"digest": str(totals.digests)}


def _from_row(row: Row) -> DirectoryDigest:
    directory = PartitionDirectory(**{name: row[name] for name in ("name", "topic", "topic_id", "partition")})  # type: ignore[arg-type]
    numbers = {name: int(str(row[name])) for name in _TOTALS}
    return DirectoryDigest(directory=directory, totals=ListingTotals(**numbers, digests=int(str(row["digest"]))))
