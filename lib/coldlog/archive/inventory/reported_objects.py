"""Keep the objects of an S3 Inventory report by directory, outside of memory.

AWS promises no order of the rows of a report. So rows are put into buckets by their directory, each bucket is brought
into the order of its directories and written to an Arrow file, which is mapped. A listing reads the rows of one
directory. In memory are one bucket at a time (`_BUCKET_BYTES` of the report's files, some two million objects) and the
names of the directories. On disk, an object takes 28 bytes and its name without the directory: a million objects of
LocalTieredStorage take 85 MB.

The files are in a temporary folder (`TMPDIR`), which is removed as soon as they are mapped. Their space is free again
when nothing refers to the objects any more. A part, for a task of another process, is in memory.

Names of directories are relative to the archive's root and end in `/`, but for the root itself, which is empty. So the
keys `x` and `/x` differ.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.archive.inventory.report_files import iter_rows
from coldlog.archive.inventory.reports import InventoryReport, read_report_file
from coldlog.archive.stores.object_store import ObjectInfo

_BUCKET_BYTES = 32 << 20
_STORED = pa.schema([("name", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64())])
_BUCKETED = pa.schema([("directory", pa.int64()), *_STORED])
_Place = tuple[pa.Table, int, int]
"""The rows of a directory: table, first row, number of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedObjects:
    """The objects below a directory of a bucket."""

    _places: Mapping[str, _Place]
    _children: Mapping[str, frozenset[str]]

    def has_directory(self, directory: str) -> bool:
        """Whether the report has an object below the directory, or its marker."""
        return directory in self._children

    def list_children(self, directory: str) -> list[str]:
        """What is between the directory and the next `/`, in names of objects below it; sorted."""
        return sorted(self._children.get(directory, ()))

    def list_objects(self, directory: str) -> list[ObjectInfo]:
        """The objects directly in the directory, sorted, without the directory in their names. So its marker has an
        empty name. Of a key that the report has twice, the newer object counts."""
        if directory not in self._places:
            return []
        table, start, count = self._places[directory]
        columns = (table[name].slice(start, count).to_pylist() for name in _STORED.names)
        rows = sorted(zip(*columns, strict=True))
        newest = {row[0]: row for row in sorted(rows, key=lambda row: row[2])}
        kept = rows if len(newest) == len(rows) else sorted(newest.values())
        return [ObjectInfo(name=name, size_bytes=size, modified_ms=modified) for name, size, modified in kept]

    def part(self, directories: Iterable[str]) -> ReportedObjects:
        """These directories and what is below them, in memory."""
        chosen = [self._below(directory) for directory in directories]
        places = {name: self._places[name] for names in chosen for name in names if name in self._places}
        return _of_rows(_rows_of(places), {name: place[2] for name, place in places.items()})

    def _below(self, directory: str) -> Iterator[str]:
        yield directory
        for child in self._children.get(directory, ()):
            yield from self._below(f"{directory}{child}/")

    def __reduce__(self) -> tuple[object, ...]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _STORED, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_table(_rows_of(self._places))
        return _unpacked, (sink.getvalue().to_pybytes(), {name: place[2] for name, place in self._places.items()})


def read_objects(report: InventoryReport, root: str) -> ReportedObjects:
    """Read the objects of a report whose keys are below `root`; `ArchiveError` if a file of the report is damaged."""
    prefix = f"{root}/" if root else ""
    count = 1 + sum(file.size_bytes for file in report.files) // _BUCKET_BYTES
    with tempfile.TemporaryDirectory(prefix="coldlog-inventory-") as folder:
        with _Buckets(folder=Path(folder), count=count) as buckets:
            for file in report.files:
                content = read_report_file(report, file)
                for rows in iter_rows(file.key, content, report.file_format, report.columns, prefix):
                    buckets.add(rows, prefix)
        places = dict(buckets.iter_places())
    return ReportedObjects(_places=places, _children=_children_of(places))


@dataclass(slots=True, kw_only=True)
class _Buckets:
    """Rows in files, by directory."""

    folder: Path
    count: int
    _numbers: dict[str, int] = field(default_factory=dict)
    """Of the directories."""
    _streams: list[pa.RecordBatchWriter] = field(default_factory=list)
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> _Buckets:
        for number in range(self.count):
            self._streams.append(self._open.enter_context(pa.ipc.new_stream(self._path(number), _BUCKETED)))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, rows: pa.Table, prefix: str) -> None:
        """Add rows of `report_files.ROWS`, whose keys begin with `prefix`."""
        for batch in rows.to_batches():
            directories, names = self._split(batch["key"], prefix)
            columns = [pa.array(directories), names, batch["size_bytes"], batch["modified_ms"]]
            split = pa.RecordBatch.from_arrays(columns, schema=_BUCKETED)
            buckets = directories % self.count
            for number in np.unique(buckets):
                self._streams[number].write_batch(split.filter(pa.array(buckets == number)))

    def iter_places(self) -> Iterator[tuple[str, _Place]]:
        """Sort and map each bucket, and yield the place of each directory."""
        names = list(self._numbers)
        for number in range(self.count):
            sorted_path = self._path(number).with_suffix(".sorted")
            with pa.ipc.open_stream(self._path(number)) as stream:
                rows = stream.read_all()
            self._path(number).unlink()
            directories = rows["directory"].to_numpy()
            order = np.argsort(directories, kind="stable")
            found, starts, counts = np.unique(directories[order], return_index=True, return_counts=True)
            with pa.ipc.new_file(sorted_path, _STORED) as file:
                file.write_table(rows.select(_STORED.names).take(pa.array(order)).combine_chunks())
            del rows
            with pa.memory_map(str(sorted_path)) as mapped:
                table = pa.ipc.open_file(mapped).read_all()
            for directory, start, count in zip(found.tolist(), starts.tolist(), counts.tolist(), strict=True):
                yield names[directory], (table, start, count)

    def _split(self, keys: pa.StringArray, prefix: str) -> tuple[np.ndarray, pa.StringArray]:
        """The numbers of the keys' directories, and the rest of the keys."""
        parts = pc.split_pattern(keys, "/", max_splits=1, reverse=True)
        offsets, texts = parts.offsets.to_numpy() - parts.offsets[0].as_py(), parts.flatten()
        is_below = pa.array(np.diff(offsets) == 2)
        above = pc.if_else(is_below, texts.take(pa.array(offsets[:-1])), None).dictionary_encode("encode")
        found = [("" if each is None else f"{each}/")[len(prefix) :] for each in above.dictionary.to_pylist()]
        numbers = [self._numbers.setdefault(each, len(self._numbers)) for each in found]
        directories = np.array(numbers, dtype=np.int64)[above.indices.to_numpy()]
        return directories, texts.take(pa.array(offsets[1:] - 1))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.rows"


def _rows_of(places: Mapping[str, _Place]) -> pa.Table:
    rows = [table.slice(start, count) for table, start, count in places.values()]
    return pa.concat_tables([_STORED.empty_table(), *rows]).combine_chunks()


def _of_rows(table: pa.Table, counts: Mapping[str, int]) -> ReportedObjects:
    places, start = {}, 0
    for name, count in counts.items():
        places[name] = table, start, count
        start += count
    return ReportedObjects(_places=places, _children=_children_of(places))


def _unpacked(content: bytes, counts: Mapping[str, int]) -> ReportedObjects:
    with pa.ipc.open_stream(content) as stream:
        return _of_rows(stream.read_all().combine_chunks(), counts)


def _children_of(directories: Iterable[str]) -> dict[str, frozenset[str]]:
    """Map each directory, and each one above it, to the names in it."""
    children: dict[str, set[str]] = {}
    for each in directories:
        directory = each
        while directory not in children:
            children[directory] = set()
            above, slash, _ = directory[:-1].rpartition("/")
            directory = above + slash
    for directory in filter(None, children):
        above, slash, name = directory[:-1].rpartition("/")
        children[above + slash].add(name)
    return {name: frozenset(found) for name, found in children.items()}
