"""Read a small part of a table without an engine.

The statistics of files and of Parquet's row groups narrow down what is read. One read is one row group and only the
wanted columns. It is decoded once and cached while there is room. A reader must be used by one thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow.parquet import FileMetaData

from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.files.file_checksums import damaged
from coldlog.tables.delta.files.parquet_files import TableFile, check_footer, file_opener
from coldlog.tables.delta.files.table_files import ColumnRanges, TableFiles, column_ranges
from coldlog.tables.delta.table_storage import storage_error

_Decoded = TypeVar("_Decoded")
_OPEN_FILES = 256

Within = Mapping[str, tuple[Any, Any]]
"""The smallest and the largest value, both inclusive, of some columns."""

_ANYWHERE: Within = {}
_FEW = 8
"""Up to this number, comparing parts one by one is faster than with arrays."""


class _NearParts:
    """The parts of a table or a file that may hold some rows: their numbers and their ranges."""

    def __init__(self, ranges: ColumnRanges, within: Within) -> None:
        self._ranges = ranges
        self._parts = ranges.may_hold(within)
        self._bounds: dict[str, tuple[list[Any], list[Any]]] = {}
        self.numbers: list[int] = self._parts.tolist()

    def may_hold(self, further: Within) -> Iterable[int]:
        """Return positions in `numbers`."""
        places = range(len(self.numbers))
        if not further:
            return places
        if len(places) > _FEW:
            held: list[int] = np.searchsorted(self._parts, self._ranges.may_hold(further, self._parts)).tolist()
            return held
        wanted = [(*self.bounds(name), low, high) for name, (low, high) in further.items()]
        return [
            at
            for at in places
            if all(least[at] <= high and greatest[at] >= low for least, greatest, low, high in wanted)
        ]

    def bounds(self, name: str) -> tuple[list[Any], list[Any]]:
        """Return the smallest and the largest values of a column."""
        bounds = self._bounds.get(name)
        if bounds is None:
            both = self._ranges.minima[name], self._ranges.maxima[name]
            bounds = self._bounds[name] = both[0][self._parts].tolist(), both[1][self._parts].tolist()
        return bounds


@dataclass(frozen=True, slots=True)
class PartRange:
    """The smallest and the largest value of some columns in a file or a row group, known before it is read."""

    parts: _NearParts
    at: int

    def least(self, name: str) -> Any:
        return self.parts.bounds(name)[0][self.at]

    def greatest(self, name: str) -> Any:
        return self.parts.bounds(name)[1][self.at]


IsNeeded = Callable[[PartRange], bool]


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """`parquet` is None if the file has one row group, which was read: a footer of 60 columns takes 200 KB."""

    parquet: TableFile | None
    ranges: ColumnRanges

    def close(self) -> None:
        if self.parquet is not None:
            self.parquet.close()


@dataclass(slots=True)
class ReadCounts:
    """What a reader has read from storage so far, without reads from its cache."""

    files: int = 0
    row_groups: int = 0
    rows: int = 0


class KeptParts:
    """Decoded row groups of one reader or several, up to `most_bytes`; those not used for the longest time go first."""

    def __init__(self, most_bytes: int = 256 << 20) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._parts: OrderedDict[tuple[object, int, int], tuple[Any, int]] = OrderedDict()

    def find(self, reader: object, number: int, group: int) -> Any | None:
        """Return the row group `group` of the file with this number; None if it is not kept."""
        kept = self._parts.get((reader, number, group))
        if kept is None:
            return None
        self._parts.move_to_end((reader, number, group))
        return kept[0]

    def add(self, reader: object, number: int, group: int, decoded: object, size_bytes: int) -> None:
        """Keep a row group of this size, and drop others if there are too many; the new one stays in any case."""
        self._parts[reader, number, group] = decoded, size_bytes
        self._bytes += size_bytes
        while self._bytes > self._most_bytes and len(self._parts) > 1:
            self._bytes -= self._parts.popitem(last=False)[1][1]


def _in_order(place: tuple[int, int, int, PartRange]) -> tuple[int, int, int]:
    return place[:3]


class TableReader(Generic[_Decoded]):
    """Reads row groups of one table; `decode` returns the decoded rows and their size in bytes.

    Readers may share what they keep (`kept`).
    """

    def __init__(
        self,
        files: TableFiles,
        table: TableDefinition,
        columns: Sequence[str],
        decode: Callable[[pa.Table], tuple[_Decoded, int]],
        *,
        kept: KeptParts | None = None,
    ) -> None:
        self.counts = ReadCounts()
        self._files = files
        self._table = table
        self._columns = list(columns)
        self._decode = decode
        self._kept = KeptParts() if kept is None else kept
        self._key = object()
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()
        self._open_file: Callable[[str], pa.NativeFile] | None = None
        self._near: Within = _ANYWHERE
        self._near_files = _NearParts(files.ranges, _ANYWHERE)
        self._near_groups: dict[int, _NearParts] = {}

    @property
    def version(self) -> int:
        """The version of the table."""
        return self._files.version

    def iter_parts(
        self, near: Within, order_by: str, further: Within = _ANYWHERE, is_needed: IsNeeded | None = None
    ) -> Iterator[tuple[PartRange, _Decoded]]:
        """Iterate over row groups that may have a row with all columns in their inclusive ranges, each with its ranges.

        They are ordered by the smallest value of `order_by`, an integer column. They can hold other rows too. The parts
        that match `near` are remembered until a call with another `near`. `further` and `is_needed` narrow them down;
        `is_needed` is called for files and row groups, and for a row group again just before it is read. A file that
        cannot be read raises `RetriableError` (the table was vacuumed meanwhile, or the store is down), a damaged one
        `ColdlogError`.
        """
        files, places = self._files_near(near), []
        for file in files.may_hold(further):
            if is_needed is not None and not is_needed(PartRange(files, file)):
                continue
            number = files.numbers[file]
            groups = self._groups_near(number)
            for at in groups.may_hold(further):
                part = PartRange(groups, at)
                if is_needed is None or is_needed(part):
                    places.append((part.least(order_by), number, groups.numbers[at], part))
        is_only = len(places) == 1
        for _, number, group, part in places if is_only else sorted(places, key=_in_order):
            if is_needed is None or is_only or is_needed(part):
                yield part, self._read(number, group)

    def count_parts(self, near: Within, further: Within) -> int:
        """Return how many row groups may have a row with all columns in their inclusive ranges. None of them is read.
        Raise as `iter_parts` does."""
        files = self._files_near(near)
        numbers = [files.numbers[file] for file in files.may_hold(further)]
        return sum(1 for number in numbers for _ in self._groups_near(number).may_hold(further))

    def _files_near(self, near: Within) -> _NearParts:
        if near != self._near:
            self._near, self._near_files, self._near_groups = near, _NearParts(self._files.ranges, near), {}
        return self._near_files

    def _groups_near(self, number: int) -> _NearParts:
        groups = self._near_groups.get(number)
        if groups is None:
            groups = self._near_groups[number] = _NearParts(self._opened(number).ranges, self._near)
        return groups

    def _with_later_columns(self, rows: pa.Table, number: int) -> pa.Table:
        """Add the columns that an older release did not write, as NULL."""
        missing = [field for field in self._table.arrow_schema if field.name in self._columns]
        missing = [field for field in missing if field.name not in rows.column_names]
        if required := [field.name for field in missing if not field.nullable]:
            path = f"{self._files.location}/{self._files.paths[number]}"
            raise damaged(path, f"it has no column {', '.join(sorted(required))}")
        for field in missing:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows

    def _read(self, number: int, group: int) -> _Decoded:
        kept: _Decoded | None = self._kept.find(self._key, number, group)
        if kept is not None:
            return kept
        opened = self._opened(number)
        if opened.parquet is None:
            del self._open[number]
            opened = self._opened(number)
        assert opened.parquet is not None
        try:
            rows = opened.parquet.read([group], self._columns)
        except (OSError, pa.ArrowException) as failed:
            raise storage_error(failed, self._files.location, self._files.paths[number]) from None
        if opened.parquet.metadata.num_row_groups == 1:
            opened.close()
            self._open[number] = _OpenFile(None, opened.ranges)
        if len(rows.column_names) < len(self._columns):
            rows = self._with_later_columns(rows, number)
        self.counts.row_groups += 1
        self.counts.rows += rows.num_rows
        decoded, size_bytes = self._decode(rows)
        self._kept.add(self._key, number, group, decoded, size_bytes)
        return decoded

    def _opened(self, number: int) -> _OpenFile:
        opened = self._open.get(number)
        if opened is not None:
            self._open.move_to_end(number)
            return opened
        try:
            if self._open_file is None:
                self._open_file = file_opener(self._files.location)
            file = self._open_file(self._files.paths[number])
            published = self._files.published[number] if self._files.published else None
            place = f"{self._files.location}/{self._files.paths[number]}"
            footer = None if published is None else check_footer(file, place, published)
            parquet = TableFile(file, footer)
        except (OSError, pa.ArrowException) as failed:
            raise storage_error(failed, self._files.location, self._files.paths[number]) from None
        opened = self._open[number] = _OpenFile(parquet, self._row_group_ranges(parquet.metadata))
        self.counts.files += 1
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return opened

    def _row_group_ranges(self, metadata: FileMetaData) -> ColumnRanges:
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        places = {groups[0].column(at).path_in_schema: at for at in range(groups[0].num_columns)} if groups else {}
        names = self._files.ranges.minima.keys()
        least: dict[str, list[object]] = {name: [] for name in names}
        greatest: dict[str, list[object]] = {name: [] for name in names}
        for group in groups:
            for name in names:
                statistics = group.column(places[name]).statistics if name in places else None
                if statistics is not None and not statistics.has_min_max:
                    statistics = None
                least[name].append(None if statistics is None else statistics.min)
                greatest[name].append(None if statistics is None else statistics.max)
        return column_ranges(self._table, least, greatest, len(groups))

    def close(self) -> None:
        """Close the files."""
        while self._open:
            self._open.popitem()[1].close()
