"""Check the tables against the last publish: their versions, their lists of files, and the footers of these files.

Each publish has a number. Its manifest is a small file, `_manifest/<number>.json` in the warehouse:

    line 1    JSON: the number, the format of the warehouse and, by table, its version and its live files (see
              `PublishedFile`)
    line 2    CRC-32C of line 1, in hexadecimal

The manifest is written first. Then `segments` and `partition_metadata` get the number, as the version of the
application `coldlog-publish` in their logs. So a reader that sees a number finds its manifest, and tables that are as
new as the manifest says. Later commits, such as those of OPTIMIZE, make newer versions: files that the manifest names
are held to it, others are not. Only at the version of the manifest the lists must be equal.

Refused with `ColdlogError`: a manifest that is missing or damaged, a table that is older than the manifest says (an
older copy, or a log whose newest commits are lost), and a file whose entry in the log, or whose footer, has changed.
A warehouse without a number, of an earlier release, is not held to anything. A manifest with a higher format than
`FORMAT` is refused with `UsageError`: a release raises it when earlier ones would misread its tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from crc32c import crc32c

from coldlog.errors import ColdlogError, UsageError
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.file_checksums import RESTORE, damaged
from coldlog.tables.delta.files.parquet_files import Opener, PublishedFile, check_footer, file_opener, opening
from coldlog.tables.delta.files.table_files import TableFiles, is_newest, list_table_files
from coldlog.tables.delta.locations import plain_location
from coldlog.tables.delta.log_files import NO_LINKS, LogFiles, open_files

MANIFEST_FOLDER = "_manifest"
NUMBERED_TABLES: tuple[TableDefinition, ...] = (SEGMENTS, PARTITION_METADATA)
"""The tables that carry the number of the publish."""
HELD_TABLES: tuple[TableDefinition, ...] = (*NUMBERED_TABLES, *INDEX_TABLES, TXN_SEGMENTS, QUARANTINE)
"""The tables that a manifest names."""
FORMAT = 1
"""The format of warehouses that this release writes. Manifests of earlier releases do not name theirs, which is 1."""
_KEPT = 50
"""Reads of the past (`warehouse.as_of`) are held to the manifests that are kept."""
_AT_ONCE = 8
_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """A version of a table, and its live files by path."""

    version: int
    files: Mapping[str, PublishedFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What one publish made, by the name of the table."""

    number: int
    tables: Mapping[str, PublishedTable]


def open_manifests(uri: str) -> LogFiles:
    """Open the folder of the manifests of a warehouse."""
    return open_files(uri, MANIFEST_FOLDER)


def read_manifest(manifests: LogFiles, uri: str, number: int) -> Manifest | None:
    """Read a manifest; None if it is missing. `ColdlogError` if it is damaged, `UsageError` if it is of a newer
    release."""
    content = manifests.read(_name(number))
    if content is None:
        return None
    body, _, checksum = content.partition(b"\n")
    if checksum.strip() != b"%08x" % crc32c(body):
        raise damaged(f"{uri}/{MANIFEST_FOLDER}/{_name(number)}", "it differs from its checksum")
    stored = json.loads(body)
    if (found := stored.get("format", 1)) > FORMAT:
        raise UsageError(
            f"the warehouse {uri} has format {found}, but this release of coldlog reads formats up to {FORMAT}; "
            "install the release that wrote it, or a newer one"
        )
    tables = {
        name: PublishedTable(
            version=table["version"],
            files={path: PublishedFile(*numbers) for path, numbers in table["files"].items()},
        )
        for name, table in stored["tables"].items()
    }
    return Manifest(number=stored["number"], tables=tables)


def write_manifest(manifests: LogFiles, manifest: Manifest) -> bool:
    """Write a manifest and remove one that is no longer kept; False if there is one of that number."""
    tables = {
        name: {"version": table.version, "files": {path: [*file] for path, file in table.files.items()}}
        for name, table in manifest.tables.items()
    }
    stored = {"number": manifest.number, "format": FORMAT, "tables": tables}
    body = json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode()
    name, content = _name(manifest.number), body + b"\n%08x\n" % crc32c(body)
    try:
        is_written = manifests.put(name, content)
    except OSError as failed:
        if failed.errno not in NO_LINKS:
            raise
        # One job writes a warehouse at a time.
        manifests.replace(name, content)
        is_written = True
    if is_written and manifest.number > _KEPT:
        manifests.remove(_name(manifest.number - _KEPT))
    return is_written


@dataclass(frozen=True, slots=True)
class Manifests:
    """The manifests of a warehouse, each read once. Make one for each listing: a rebuilt warehouse counts from 1."""

    uri: str
    _read: dict[int, Manifest] = field(default_factory=dict, init=False)

    def get(self, number: int) -> Manifest:
        """Return a manifest; `ColdlogError` if it is damaged, `FileNotFoundError` if it is missing."""
        if number not in self._read:
            location = plain_location(self.uri).rstrip("/")
            manifest = read_manifest(open_manifests(location), location, number)
            if manifest is None:
                raise FileNotFoundError(f"{location}/{MANIFEST_FOLDER}/{_name(number)}")
            self._read[number] = manifest
        return self._read[number]


def hold_to_manifest(
    manifests: Manifests, listed: Iterable[TableFiles], number: int | None = None, *, is_past: bool = False
) -> list[TableFiles]:
    """Return the lists of files with what a publish says of them; `ColdlogError` if they contradict it.

    Without the `number` of the publish, it is the newest that the lists name, which must include `NUMBERED_TABLES`,
    listed first. A publish that is not complete yet is no contradiction. `is_past`: the manifest may have been removed
    since.
    """
    lists = list(listed)
    if number is None:
        number = max(files.publish_number for files in lists)
    if not number:
        return lists
    try:
        manifest = manifests.get(number)
    except FileNotFoundError as missing:
        if is_past:
            return lists
        raise damaged(str(missing), "it is missing") from None
    return [hold(files, manifest) for files in lists]


def hold(files: TableFiles, manifest: Manifest) -> TableFiles:
    """Return the list of files with what a manifest says of them; `ColdlogError` if they contradict it."""
    table = manifest.tables.get(files.location.rpartition("/")[2])
    if table is None:
        return files
    if files.version < table.version:
        raise ColdlogError(
            f"{files.location} is damaged: it has version {files.version}, but publish {manifest.number} was made of "
            f"version {table.version}, so its newest commits are lost or it is an older copy; {RESTORE}"
        )
    published = [table.files.get(path) for path in files.paths]
    for path, action, file in zip(files.paths, files.actions, published, strict=True):
        if file is not None and file.action_crc32c != action:
            raise _differing_log(files, f"the entry of {path} has changed", manifest)
    if is_version_of(files, table, manifest.number):
        if None in published:
            raise _differing_log(files, f"it names {files.paths[published.index(None)]}", manifest)
        if missing := table.files.keys() - set(files.paths):
            raise _differing_log(files, f"it does not name {min(missing)}", manifest)
    return replace(files, published=tuple(published))


def check_published(uri: str, tables: Sequence[TableDefinition] = HELD_TABLES) -> list[TableFiles]:
    """List the files of these tables of a manifest; `ColdlogError` if they contradict it.

    The tables must include `NUMBERED_TABLES`.
    """
    while True:
        listed = list_held(plain_location(uri).rstrip("/"), tables)
        try:
            return hold_to_manifest(Manifests(uri), listed)
        except ColdlogError:
            # Unless a run published meanwhile: of the numbered tables one may be older than the other's publish.
            if all(is_newest(files, table) for files, table in zip(listed, NUMBERED_TABLES, strict=False)):
                raise


def check_footers(listed: Iterable[TableFiles]) -> None:
    """Check the footer of every file of which a manifest says something; `ColdlogError` if one has changed."""
    for files in listed:
        opened = file_opener(files.location)

        def check(held: tuple[str, PublishedFile | None], files: TableFiles = files, opened: Opener = opened) -> None:
            path, published = held
            if published is not None:
                with opening(files.location, path), opened(path) as file:
                    check_footer(file, f"{files.location}/{path}", published)

        at_once(check, zip(files.paths, files.published, strict=False))


def list_held(uri: str, tables: Sequence[TableDefinition]) -> list[TableFiles]:
    """List the files of tables below a plain location, without ranges.

    The numbered ones come first: the others are then at least as new as the manifest of their number says.
    """

    def listed(table: TableDefinition) -> TableFiles:
        return list_table_files(f"{uri}/{table.name}", table, ())

    others = [table for table in tables if table not in NUMBERED_TABLES]
    return [*at_once(listed, NUMBERED_TABLES), *at_once(listed, others)]


def at_once(make: Callable[[_Item], _Made], items: Iterable[_Item]) -> list[_Made]:
    """Make something of each item, some at once: each takes requests to the store."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(make, items))


def is_version_of(files: TableFiles, table: PublishedTable, number: int) -> bool:
    """Whether the files are those of the published version: the commit of the number itself names no files."""
    numbered = files.version == table.version + 1 and files.publish_number == number
    return files.version == table.version or numbered


def _differing_log(files: TableFiles, why: str, manifest: Manifest) -> ColdlogError:
    return damaged(f"{files.location}/_delta_log", f"at version {files.version} {why} since publish {manifest.number}")


def _name(number: int) -> str:
    return f"{number:020d}.json"
