"""Publish the manifest of a warehouse.

See `manifest` for the layout, and for the order in which manifest and numbers are written. A run that was killed
between them leaves a manifest without a number in the tables, which nobody reads: the next publish takes a higher
number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coldlog.errors import RetriableError
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.delta_log import add_files
from coldlog.tables.delta.files.parquet_files import PublishedFile, file_opener, read_footer
from coldlog.tables.delta.files.table_files import PUBLISH_APPLICATION, TableFiles
from coldlog.tables.delta.locations import plain_location
from coldlog.tables.delta.log_files import LogFiles
from coldlog.tables.delta.manifest import (
    HELD_TABLES,
    NUMBERED_TABLES,
    Manifest,
    PublishedTable,
    at_once,
    is_version_of,
    list_held,
    open_manifests,
    read_manifest,
    write_manifest,
)
from coldlog.tables.delta.plain_commit import LaterWriterError, commit_files
from coldlog.tables.delta.warehouse import Warehouse

_ATTEMPTS = 1000


def publish_manifest(warehouse: Warehouse) -> int | None:
    """Publish the tables as they are now under a new number; return it, or None if that is already published."""
    uri = plain_location(warehouse.uri).rstrip("/")
    listed = list_held(uri, HELD_TABLES)
    number = max(files.publish_number for files in listed)
    manifests = open_manifests(uri)
    newest = read_manifest(manifests, uri, number) if number else None
    if newest is not None and _is_published(listed, newest):
        return None
    before = {} if newest is None else newest.tables
    tables = {
        table.name: PublishedTable(version=files.version, files=_files_of(files, before.get(table.name)))
        for table, files in zip(HELD_TABLES, listed, strict=True)
    }
    for further in range(number + 1, number + _ATTEMPTS):
        # A killed run may have left a manifest.
        if _write(manifests, Manifest(number=further, tables=tables), uri):
            for table in NUMBERED_TABLES:
                _set_number(warehouse, table, further)
            return further
    raise RetriableError(f"other jobs publish {uri} at the same time; run again")


def _write(manifests: LogFiles, manifest: Manifest, uri: str) -> bool:
    try:
        return write_manifest(manifests, manifest)
    except OSError as failed:
        raise RetriableError(f"the manifest of {uri} cannot be written: {failed.strerror}; run again") from failed


def _is_published(listed: Sequence[TableFiles], manifest: Manifest) -> bool:
    return all(
        table.name in manifest.tables and is_version_of(files, manifest.tables[table.name], manifest.number)
        for table, files in zip(HELD_TABLES, listed, strict=True)
    ) and all(files.publish_number == manifest.number for files in listed[: len(NUMBERED_TABLES)])


def _files_of(files: TableFiles, before: PublishedTable | None) -> dict[str, PublishedFile]:
    """What the manifest holds of a table's files; files do not change, so only new ones are opened."""
    known = {} if before is None else before.files
    opened = file_opener(files.location)

    def read(at: int) -> PublishedFile:
        path, action = files.paths[at], files.actions[at]
        stored = known.get(path)
        if stored is not None:
            return stored._replace(action_crc32c=action)
        return read_footer(opened, files.location, path, action)

    return dict(zip(files.paths, at_once(read, range(len(files.paths))), strict=True))


def _set_number(warehouse: Warehouse, table: TableDefinition, number: int) -> None:
    location = warehouse.data_location(table)
    with warehouse.commits() as lease:
        numbers: list[tuple[str, int]] = [(PUBLISH_APPLICATION, number), *([] if lease is None else [lease])]
        try:
            version: Any = commit_files(location, table, [], numbers)
        except LaterWriterError:
            if warehouse.lease is not None:
                warehouse.lease.confirm()
            raise
        if version is None:
            add_files(warehouse.spark, warehouse.location(table), [], numbers)
