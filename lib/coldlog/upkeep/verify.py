"""Read every file of the tables and list what is damaged, without Spark.

Of each table it checks the log (in a folder, every file that has checksums), the list of files against the newest
manifest, and every live file: its footer against the manifest, each page against its checksum and, in a folder, each
byte that it reads against the checksums of the file. One damage does not end the search. A table whose log cannot be
read has no list of files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from coldlog.errors import ColdlogError, UsageError
from coldlog.runtime.console import counted, human_bytes
from coldlog.runtime.job import PlainJob
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.committed_offsets import COMMITTED_OFFSETS
from coldlog.tables.definitions.damage_reports import DAMAGE_REPORTS
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.directory_digests import DIRECTORY_DIGESTS
from coldlog.tables.definitions.metadata_positions import METADATA_POSITIONS
from coldlog.tables.definitions.replay_positions import REPLAY_POSITIONS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.tier.tier_partitions import TIER_PARTITIONS
from coldlog.tables.definitions.tier.tier_quotas import TIER_QUOTAS
from coldlog.tables.definitions.tier.tier_schedule import TIER_SCHEDULE
from coldlog.tables.delta.files.file_checksums import check_file
from coldlog.tables.delta.files.parquet_files import (
    Opener,
    PublishedFile,
    TableFile,
    check_footer,
    file_opener,
    opening,
)
from coldlog.tables.delta.files.table_files import TableFiles, list_table_files
from coldlog.tables.delta.locations import local_folder, plain_location
from coldlog.tables.delta.log_check import LOG_FOLDER
from coldlog.tables.delta.manifest import Manifests, hold_to_manifest

_WITHOUT_SPARK = (
    TIER_PARTITIONS,
    TIER_QUOTAS,
    TIER_SCHEDULE,
    REPLAY_POSITIONS,
    COMMITTED_OFFSETS,
    DAMAGE_REPORTS,
    DIRECTORY_DIGESTS,
    METADATA_POSITIONS,
)


@dataclass(slots=True, kw_only=True)
class Verification:
    """How much was read, and what is damaged: one line a damage."""

    file_count: int = 0
    size_bytes: int = 0
    damages: list[str] = field(default_factory=list)


def verify_if_asked(job: PlainJob) -> int | None:
    """maintain_tables --verify: list what is damaged; return 1 if something is, None if it is not asked for."""
    if not job.arguments.verify:
        return None
    with job.console.stage("verify") as stage:
        found = verify_tables(job.settings.warehouse_uri)
        stage.add(counted(found.file_count, "file"), human_bytes(found.size_bytes) + " read")
        stage.add(counted(len(found.damages), "damage"))
    for damage in found.damages:
        job.console.warn(damage)
    return int(bool(found.damages))


def verify_tables(uri: str, tables: Sequence[TableDefinition] = (*ALL_TABLES, *_WITHOUT_SPARK)) -> Verification:
    """Read all files of these tables of the warehouse; `UsageError` if there is no table `segments` among all."""
    found, location = Verification(), plain_location(uri).rstrip("/")
    listed = []
    for table in tables:
        found.damages += _damaged_log_files(f"{location}/{table.name}")
        files = _list(location, table, found)
        listed += [] if files is None else [files]
    number, manifests = max((files.publish_number for files in listed), default=0), Manifests(uri)
    for files in listed:
        try:
            (held,) = hold_to_manifest(manifests, [files], number)
        except ColdlogError as damage:
            found.damages.append(str(damage))
            held = files
        _read_files(held, found)
    # A file can be found by its checksums and by what reads it.
    found.damages[:] = {damage.partition(" is damaged: ")[0]: damage for damage in reversed(found.damages)}.values()
    found.damages.reverse()
    return found


def _list(location: str, table: TableDefinition, found: Verification) -> TableFiles | None:
    try:
        return list_table_files(f"{location}/{table.name}", table, ())
    except UsageError:
        # Tables of the tier and of replays are made when they are needed.
        if table is SEGMENTS:
            raise
    except ColdlogError as damage:
        found.damages.append(str(damage))
    return None


def _damaged_log_files(location: str) -> Iterator[str]:
    log = os.path.join(local_folder(location) or "", LOG_FOLDER)
    if local_folder(location) is None or not os.path.isdir(log):
        return
    for name in sorted(os.listdir(log)):
        path = os.path.join(log, name)
        if not name.startswith(".") and os.path.isfile(path):
            try:
                check_file(path)
            except ColdlogError as damage:
                yield str(damage)


def _read_files(files: TableFiles, found: Verification) -> None:
    opened = file_opener(files.location)
    for path, published in zip(files.paths, files.published or [None] * len(files.paths), strict=True):
        found.file_count += 1
        try:
            found.size_bytes += _read_file(opened, files.location, path, published)
        except ColdlogError as damage:
            found.damages.append(str(damage))


def _read_file(opened: Opener, location: str, path: str, published: PublishedFile | None) -> int:
    """Read all pages of a file; return its size."""
    with opening(location, path), opened(path) as file:
        size: int = file.size()
        footer = None if published is None else check_footer(file, f"{location}/{path}", published)
        parquet = TableFile(file, footer)
        for group in range(parquet.metadata.num_row_groups):
            parquet.read([group])
    return size
