"""Read the rows of some partitions from a large table.

The statistics of files and of their row groups say which of them may have such rows. A row without a topic, such as a
tombstone of the metadata topic, may be of any topic; it counts by its partition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from coldlog.tables.delta.files.parquet_files import opened_parquet
from coldlog.tables.delta.table_storage import storage_error

_PLACE = ("topic", "partition")


class _Bounds(NamedTuple):
    """The ranges of topic and partition in a file or a row group; None: unknown."""

    first: str | None
    last: str | None
    low: int | None
    high: int | None
    has_null_topic: bool


@dataclass(frozen=True, slots=True)
class WantedPartitions:
    """Topics and partitions whose rows are wanted."""

    partitions: frozenset[tuple[str, int]]
    _topics: list[str]
    _numbers: list[list[int]]
    _all_numbers: list[int]

    @classmethod
    def of(cls, partitions: Iterable[tuple[str, int]]) -> WantedPartitions:
        numbers: dict[str, list[int]] = {}
        for topic, number in sorted(set(partitions)):
            numbers.setdefault(topic, []).append(number)
        every = sorted({number for each in numbers.values() for number in each})
        return cls(frozenset(partitions), list(numbers), list(numbers.values()), every)

    def files(self, actions: pa.Table) -> pa.Table:
        """Keep the files, as delta-rs lists them with their statistics, that may have wanted rows."""
        names = ("min.topic", "max.topic", "min.partition", "max.partition", "null_count.topic")
        known = set(actions.column_names)
        columns = [actions[name].to_pylist() if name in known else [None] * len(actions) for name in names]
        is_wanted = [
            self._may_be_in(_Bounds(first, last, low, high, nulls != 0))
            for first, last, low, high, nulls in zip(*columns, strict=True)
        ]
        return actions.filter(pa.array(is_wanted, pa.bool_()))

    def row_groups(self, metadata: pq.FileMetaData) -> list[int]:
        """Return the numbers of the row groups that may have wanted rows."""
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        places = {groups[0].column(at).path_in_schema: at for at in range(groups[0].num_columns)} if groups else {}
        return [number for number, group in enumerate(groups) if self._may_be_in(_bounds_of(group, places))]

    def rows(self, rows: pa.Table) -> pa.Table:
        """Keep the wanted rows."""
        is_of_topic = pc.is_in(rows["topic"], pa.array(self._topics, pa.string()))
        is_of_number = pc.is_in(rows["partition"], pa.array(self._all_numbers, rows["partition"].type))
        found = rows.filter(pc.and_(pc.or_(is_of_topic, pc.is_null(rows["topic"])), is_of_number))
        if len(self.partitions) == len(self._topics) * len(self._all_numbers):
            return found
        pairs = zip(found["topic"].to_pylist(), found["partition"].to_pylist(), strict=True)
        is_wanted = [topic is None or (topic, number) in self.partitions for topic, number in pairs]
        return found.filter(pa.array(is_wanted, pa.bool_()))

    def _may_be_in(self, bounds: _Bounds) -> bool:
        begin = 0 if bounds.first is None else bisect_left(self._topics, bounds.first)
        end = len(self._topics) if bounds.last is None else bisect_right(self._topics, bounds.last)
        wanted = [*self._numbers[begin:end], *([self._all_numbers] if bounds.has_null_topic else [])]
        return any(_has_between(numbers, bounds.low, bounds.high) for numbers in wanted)


def _has_between(numbers: Sequence[int], low: int | None, high: int | None) -> bool:
    """Whether one of the numbers, which are in order, lies in the range."""
    at = 0 if low is None else bisect_left(numbers, low)
    return at < len(numbers) and (high is None or numbers[at] <= high)


def _bounds_of(group: pq.RowGroupMetaData, places: dict[str, int]) -> _Bounds:
    topics, numbers = (group.column(places[name]).statistics if name in places else None for name in _PLACE)
    first, last = (topics.min, topics.max) if topics is not None and topics.has_min_max else (None, None)
    low, high = (numbers.min, numbers.max) if numbers is not None and numbers.has_min_max else (None, None)
    has_null_topic = topics is None or not topics.has_null_count or topics.null_count > 0
    return _Bounds(first, last, low, high, has_null_topic)


def read_partition_rows(
    location: str, paths: Iterable[str], schema: pa.Schema, wanted: WantedPartitions, most_rows: int
) -> pa.Table | None:
    """Read the wanted rows of files, in columns of `schema`; None if more than `most_rows` rows must be decoded.

    Columns that the table got after a file was written are NULL. A file that cannot be read raises `RetriableError`, a
    damaged one `ColdlogError`.
    """
    names = list(dict.fromkeys((*schema.names, *_PLACE)))
    pieces = [schema.empty_table()]
    for path in paths:
        try:
            with opened_parquet(location, path) as parquet:
                groups = wanted.row_groups(parquet.metadata)
                most_rows -= sum(parquet.metadata.row_group(number).num_rows for number in groups)
                if most_rows < 0:
                    return None
                stored = parquet.read(groups, names) if groups else None
        except (DeltaError, OSError, pa.ArrowException) as failed:
            raise storage_error(failed, location, path) from None
        if stored is not None:
            pieces.append(in_schema(wanted.rows(stored), schema))
    return pa.concat_tables(pieces)


def greatest_of_row_groups(metadata: pq.FileMetaData, column: str) -> list[int] | None:
    """Return the greatest value of a column in each row group that has one; None if a group does not say it."""
    found = list[int]()
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        at = next((at for at in range(group.num_columns) if group.column(at).path_in_schema == column), None)
        if at is None:
            return []
        statistics = group.column(at).statistics
        if statistics is None or not (statistics.has_min_max or statistics.null_count == group.num_rows):
            return None
        if statistics.has_min_max:
            found.append(statistics.max)
    return found


def in_schema(stored: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of `schema`; those that are not stored are NULL."""
    found = dict(zip(stored.column_names, stored.columns, strict=True))
    return pa.table([_as_type(found.get(each.name), each.type, stored.num_rows) for each in schema], schema=schema)


def _as_type(column: pa.ChunkedArray | None, wanted: pa.DataType, row_count: int) -> pa.ChunkedArray | pa.Array:
    """A cast takes longer than the reading of a small column, also to the type that it has."""
    if column is None:
        return pa.nulls(row_count, wanted)
    return column if column.type.equals(wanted, check_metadata=True) else column.cast(wanted)
