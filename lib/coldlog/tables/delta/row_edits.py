"""Describe and plan changes of the rows of a table, for commits without Spark (`plain_commit`).

A change says which files may have rows to change, and how it changes the rows of one file. It is planned anew if
another writer makes the next version first.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.files.partition_rows import WantedPartitions, read_partition_rows
from coldlog.tables.delta.files.table_files import read_whole_file

Row = dict[str, Any]
_KEYS_FIRST = 2_000
"""Of a file with more rows, the keys are read first."""
_BY_COLUMNS = 1_000
"""More rows are changed by columns."""
_MOST_KEYS = 1_000_000
"""The keys of more rows are not read here: they take a second and 200 MB."""
Key = tuple[object, ...]
"""The values of a table's key columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """Rows to add, and rows to change: those that equal `where` get `values`.

    `where` should name skipping columns: files whose statistics exclude it are not read.
    """

    added: Sequence[Row] = ()
    where: Row = field(default_factory=dict)
    values: Row = field(default_factory=dict)

    most_read_rows: ClassVar[float] = float("inf")
    partitions: ClassVar[None] = None

    @property
    def is_blind(self) -> bool:
        """Whether no stored row is looked at."""
        return not self.where

    def may_match(self, file: Row) -> bool:
        """Whether a file's statistics, as delta-rs lists them, allow a matching row."""
        return all(
            _is_within(value, file.get(f"min.{name}"), file.get(f"max.{name}")) for name, value in self.where.items()
        )

    def change(self, stored: pa.Table, _: set[Key]) -> tuple[pa.Table, int]:
        """Return the rows of a file after the change, and how many of them changed."""
        rows = stored.to_pylist()
        found = sum(map(self._matches, rows))
        changed = [row | self.values if self._matches(row) else row for row in rows]
        return pa.Table.from_pylist(changed, schema=stored.schema), found

    def rows_to_add(self, _: set[Key]) -> list[Row]:
        """Return the rows to add."""
        return list(self.added)

    def _matches(self, row: Row) -> bool:
        return all(row[name] == value for name, value in self.where.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMerge:
    """Rows by key: those that are stored are updated, the others are added. They may be a table with the columns that
    are needed: many rows are better given as columns.

    `update` names the columns to update; then nothing is added. Without it all columns are written. `remove` names a
    field of `rows`: where it is true, the stored row is removed. Keys must not repeat. A stored row that has these
    values already is not changed.
    """

    table: TableDefinition
    rows: Sequence[Row] | pa.Table
    update: Sequence[str] = ()
    remove: str = ""
    _by_key: dict[Key, int] = field(init=False, repr=False)
    """The place of each row."""
    _ranges: dict[str, tuple[Any, Any]] = field(init=False, repr=False)

    most_read_rows: ClassVar[float] = 150_000
    """100,000 rows of `segments` take 1.1 s of a processor and 480 MB to rewrite; more than this are left to MERGE."""
    is_blind: ClassVar[bool] = False

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns by which stored rows are found."""
        return self.table.key

    @property
    def partitions(self) -> frozenset[tuple[str, int]] | None:
        """Topics and partitions of all rows that may change; None: the key has none."""
        return _partitions_of(self.table.key, self._by_key)

    def __post_init__(self) -> None:
        by_key = {key: at for at, key in enumerate(self._iter_keys())}
        ranges = {name: _range_of([key[at] for key in by_key]) for at, name in enumerate(self.table.key)}
        object.__setattr__(self, "_by_key", by_key)
        object.__setattr__(self, "_ranges", ranges)

    def _iter_keys(self) -> Iterator[Key]:
        if isinstance(self.rows, pa.Table):
            return zip(*(self.rows[name].to_pylist() for name in self.table.key), strict=True)
        return (key_of(self.table, row) for row in self.rows)

    def may_match(self, file: Row) -> bool:
        """As `RowChange.may_match`, by the ranges of all keys."""
        return all(
            _overlaps(low, high, file.get(f"min.{name}"), file.get(f"max.{name}"))
            for name, (low, high) in self._ranges.items()
        )

    def matches_any(self, stored: pa.Table) -> bool:
        """Whether a stored row, of which only the `key_columns` are given, has the key of a row."""
        return _has_any(stored, self.key_columns, self._by_key.keys())

    def change(self, stored: pa.Table, found: set[Key]) -> tuple[pa.Table, int]:
        """As `RowChange.change`; a removed row counts, too. Adds the keys that are stored to `found`."""
        keys = zip(*(stored.column(name).to_pylist() for name in self.table.key), strict=True)
        places = {key: at for at, key in enumerate(keys) if key in self._by_key}
        found.update(places)
        if len(places) > _BY_COLUMNS:
            return self._change_by_columns(stored, places)
        before = stored.take(pa.array(places.values(), pa.int64())).to_pylist()
        changed, touched = list[Row](), set[int]()
        for row, at, wanted in zip(before, places.values(), self._rows_of(places), strict=True):
            after = row | {name: wanted.get(name) for name in self.update or self.table.column_names}
            is_removed = bool(self.remove and wanted[self.remove])
            if is_removed or after != row:
                touched.add(at)
                changed += [] if is_removed else [after]
        kept = stored.filter(pa.array([at not in touched for at in range(stored.num_rows)], pa.bool_()))
        return pa.concat_tables([kept, pa.Table.from_pylist(changed, schema=stored.schema)]), len(touched)

    def _change_by_columns(self, stored: pa.Table, places: Mapping[Key, int]) -> tuple[pa.Table, int]:
        """As `change`, of many stored rows: a row as a dict takes some 10 KB."""
        names = [*(self.update or self.table.column_names)]
        at = np.fromiter(places.values(), np.int64, len(places))
        schema = pa.schema([stored.schema.field(name) for name in names])
        removed = np.zeros(len(places), dtype=np.bool_)
        if isinstance(self.rows, pa.Table):
            rows = self.rows.take(pa.array([self._by_key[key] for key in places], pa.int64()))
            wanted = rows.select(names).cast(schema).combine_chunks()
            if self.remove:
                removed = pc.fill_null(rows[self.remove], False).to_numpy()
        else:
            listed = self._rows_of(places)
            wanted = pa.Table.from_pylist(listed, schema=schema)
            if self.remove:
                removed = np.array([bool(row[self.remove]) for row in listed], dtype=np.bool_)
        touched = removed | _differing(stored.select(names).take(pa.array(at)), wanted)
        own = np.arange(stored.num_rows)
        # The wanted rows are behind the stored ones.
        source, is_left = own.copy(), np.ones(len(own), dtype=np.bool_)
        source[at[touched]] = len(own) + np.flatnonzero(touched)
        is_left[at[removed]] = False
        own_places, places_in_both = pa.array(own[is_left]), pa.array(source[is_left])
        columns = [
            pa.chunked_array([*column.chunks, *wanted.column(name).chunks]).combine_chunks().take(places_in_both)
            if name in wanted.column_names
            else column.take(own_places)
            for name, column in zip(stored.column_names, stored.columns, strict=True)
        ]
        return pa.table(columns, schema=stored.schema), int(touched.sum())

    def _rows_of(self, keys: Iterable[Key]) -> list[Row]:
        """Return the rows with these keys."""
        places = [self._by_key[key] for key in keys]
        if isinstance(self.rows, pa.Table):
            rows: list[Row] = self.rows.take(pa.array(places, pa.int64())).to_pylist()
            return rows
        return [self.rows[at] for at in places]

    def rows_to_add(self, found: set[Key]) -> list[Row]:
        """Return the rows whose keys are not among those `found` in all files."""
        if self.update:
            return []
        new = self._rows_of(key for key in self._by_key if key not in found)
        return [
            {name: row.get(name) for name in self.table.column_names}
            for row in new
            if not (self.remove and row[self.remove])
        ]


def changed_rows(table: TableDefinition, stored: Sequence[Row], wanted: Sequence[Row]) -> list[Row]:
    """Return the `wanted` rows that are not stored, or stored with other values."""
    by_key = {key_of(table, row): row for row in stored}
    return [row for row in wanted if by_key.get(key_of(table, row)) != row]


def key_of(table: TableDefinition, row: Row) -> Key:
    """Return the values of the key columns."""
    return tuple(row[name] for name in table.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRemoval:
    """Rows to remove: those that equal one of `rows`, which have one or more of the table's columns, in all of these.

    As in SQL, NULL equals nothing.
    """

    rows: Sequence[Row]
    _names: tuple[str, ...] = field(init=False, repr=False)
    _values: set[Key] = field(init=False, repr=False)
    _ranges: dict[str, tuple[Any, Any]] = field(init=False, repr=False)

    most_read_rows: ClassVar[float] = 500_000
    """Rows of an index are narrow: so many take a second."""
    is_blind: ClassVar[bool] = False

    def __post_init__(self) -> None:
        names = tuple(self.rows[0]) if self.rows else ()
        values = {key for row in self.rows if None not in (key := tuple(row[name] for name in names))}
        ranges = {name: _range_of([each[at] for each in values]) for at, name in enumerate(names)}
        object.__setattr__(self, "_names", names)
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_ranges", ranges)

    def may_match(self, file: Row) -> bool:
        """As `RowMerge.may_match`."""
        return bool(self._values) and all(
            _overlaps(low, high, file.get(f"min.{name}"), file.get(f"max.{name}"))
            for name, (low, high) in self._ranges.items()
        )

    @property
    def key_columns(self) -> tuple[str, ...]:
        """As `RowMerge.key_columns`."""
        return self._names

    @property
    def partitions(self) -> frozenset[tuple[str, int]] | None:
        """As `RowMerge.partitions`."""
        return _partitions_of(self._names, self._values)

    def matches_any(self, stored: pa.Table) -> bool:
        """As `RowMerge.matches_any`."""
        return _has_any(stored, self._names, self._values)

    def change(self, stored: pa.Table, _: set[Key]) -> tuple[pa.Table, int]:
        """Return the rows of a file that stay, and how many go."""
        keys = zip(*(stored.column(name).to_pylist() for name in self._names), strict=True)
        kept = stored.filter(pa.array([key not in self._values for key in keys], pa.bool_()))
        return kept, stored.num_rows - kept.num_rows

    def rows_to_add(self, _: set[Key]) -> list[Row]:
        """Return nothing."""
        return []


Change = RowChange | RowMerge | RowRemoval


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """The rows of the new file, and the files that it replaces, as delta-rs lists them."""

    rows: pa.Table
    replaced: list[Row]
    changed_count: int


def plan_change(actions: pa.Table | None, location: str, table: TableDefinition, change: Change) -> ChangePlan | None:
    """Plan the change; None if files with too many rows would be read. `actions` are the files as delta-rs lists them;
    None: no stored row counts."""
    wanted = None if change.partitions is None else WantedPartitions.of(change.partitions)
    if actions is not None and wanted is not None:
        actions = wanted.files(actions)
    concerned = [] if actions is None else [file for file in actions.to_pylist() if change.may_match(file)]
    if not isinstance(change, RowChange):
        # Most large files have none of the keys, which are read in milliseconds.
        few = _KEYS_FIRST if _row_count(concerned) <= change.most_read_rows else 0
        large = [file for file in concerned if _row_count([file]) > few]
        with_keys = _files_with_keys(location, table, large, change, wanted)
        without = {file["path"] for file in large} - {file["path"] for file in with_keys}
        concerned = [file for file in concerned if file["path"] not in without]
    if _row_count(concerned) > change.most_read_rows:
        return None
    pieces, replaced, changed_count, found = [], [], 0, set[Key]()
    for file in concerned:
        changed, count = change.change(read_whole_file(location, str(file["path"]), table), found)
        if count:
            pieces.append(changed)
            replaced.append(file)
            changed_count += count
    pieces.append(pa.Table.from_pylist(change.rows_to_add(found), schema=table.arrow_schema))
    return ChangePlan(rows=pa.concat_tables(pieces), replaced=replaced, changed_count=changed_count)


def _files_with_keys(
    location: str,
    table: TableDefinition,
    files: Sequence[Row],
    change: RowMerge | RowRemoval,
    wanted: WantedPartitions | None,
) -> list[Row]:
    """Keep the files that have a row with one of the keys. Behind `_MOST_KEYS` keys, no more are read."""
    schema = pa.schema([table.arrow_schema.field(name) for name in change.key_columns])
    kept, left = [], _MOST_KEYS
    for file in files:
        path, keys = str(file["path"]), None
        if wanted is not None:
            keys = read_partition_rows(location, [path], schema, wanted, left)
        elif _row_count([file]) <= left:
            keys = read_whole_file(location, path, table, change.key_columns)
        left -= left if keys is None else len(keys)
        if keys is None or change.matches_any(keys):
            kept.append(file)
    return kept


def _differing(stored: pa.Table, wanted: pa.Table) -> npt.NDArray[np.bool_]:
    """Return whether rows at the same place differ."""
    differ = np.zeros(len(stored), dtype=np.bool_)
    nested = [name for name in stored.column_names if pa.types.is_nested(stored.schema.field(name).type)]
    for name in stored.column_names:
        if name not in nested:
            one, other = stored.column(name), wanted.column(name)
            is_same = pc.or_(pc.fill_null(pc.equal(one, other), False), pc.and_(pc.is_null(one), pc.is_null(other)))
            differ |= ~is_same.to_numpy()
    alike = pa.array(np.flatnonzero(~differ))
    if nested and len(alike):
        rows = zip(
            stored.select(nested).take(alike).to_pylist(), wanted.select(nested).take(alike).to_pylist(), strict=True
        )
        differ[alike.to_numpy()] = [one != other for one, other in rows]
    return differ


def _row_count(files: Sequence[Row]) -> int:
    """The number of the files' rows; more than any limit if the statistics of one lack it."""
    counts = [file.get("num_records") for file in files]
    return sum(count if isinstance(count, int) else sys.maxsize for count in counts)


def _has_any(stored: pa.Table, names: Sequence[str], keys: Collection[Key]) -> bool:
    """Whether a row has one of the keys. NULL equals NULL here."""
    for at, name in enumerate(names):
        values = pa.array({key[at] for key in keys}, stored.schema.field(name).type)
        stored = stored.filter(pc.is_in(stored.column(name), value_set=values))
    rows = zip(*(stored.column(name).to_pylist() for name in names), strict=True)
    return any(key in keys for key in rows)


def _partitions_of(names: Sequence[str], keys: Iterable[Key]) -> frozenset[tuple[str, int]] | None:
    if not {"topic", "partition"} <= set(names):
        return None
    topic, partition = names.index("topic"), names.index("partition")
    return frozenset((str(key[topic]), int(str(key[partition]))) for key in keys)


def _range_of(values: list[Any]) -> tuple[Any, Any]:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if len(known) == len(values) and known else (None, None)


def _is_within(value: Any, low: Any, high: Any) -> bool:
    return (low is None or low <= value) and (high is None or value <= high)


def _overlaps(first: Any, last: Any, low: Any, high: Any) -> bool:
    """Whether two ranges overlap; an end that is unknown excludes nothing."""
    if first is None:
        return True
    return (high is None or first <= high) and (low is None or low <= last)
