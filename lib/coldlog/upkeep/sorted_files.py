"""Keep a table in few files, in the order of its key.

A run that works on some partitions reads and rewrites the files that have rows of these. So the files of `segments` and
`segment_events` are kept small, with some ten thousand rows each, and in order. Most rows are in sorted files. Those
that came since, in any order, are few: maintenance joins them, and sorts the whole table again when they are a tenth of
it. So a row is sorted some ten times while its table grows tenfold.

In `segments`, rows of segments that are gone have files of their own. Retention adds to them every day, and nothing
changes them, so a run that changes other rows of the same partitions need not write them again. In a table that only
Spark sorts, they are put apart when the whole table is sorted.

Other tables that are small are one file. Spark joins the files of larger ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from coldlog.model.states import IndexStatus
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.table_files import read_whole_file
from coldlog.tables.delta.plain_commit import commit_rearranged, write_file
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.table_storage import open_newest
from coldlog.tables.delta.warehouse import Warehouse

SORTED_TABLES = (SEGMENTS, SEGMENT_EVENTS)
FILE_ROWS = 25_000
"""A file has at most so many rows, so that few are rewritten with one that changes (`RowMerge.most_read_rows`)."""
SORTED_HERE = 250_000
"""So many rows are sorted in this process, with up to half a gigabyte."""
_JOINED_BYTES = 64 << 20
_LARGE_SHARE = 10
_STATUS, _GONE = "index_status", IndexStatus.GONE.value


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """`is_gone`: whether all rows are of segments that are gone; None if only some are, or if it is not known."""

    path: str
    rows: int
    size_bytes: int
    first: tuple[Any, Any]
    last: tuple[Any, Any]
    is_gone: bool | None


def sort_files(warehouse: Warehouse, table: TableDefinition) -> bool:
    """Join and sort the files that are not in order; the rows stay the same.

    False: that was not done, because only Spark can write the table.
    """
    location = warehouse.data_location(table)
    files = _list_files(location, table)
    if files is None:
        return False
    if sum(file.rows for file in files) > SORTED_HERE:
        # Every day some segments of nearly all files go: to split them would be to sort the whole table.
        files = [replace(file, is_gone=file.is_gone is True) for file in files]
    mixed = [file for file in files if file.is_gone is None]
    recent = [*mixed, *(file for each in (True, False) for file in _out_of_order(_alike(files, each)))]
    total, recent_rows = (sum(file.rows for file in each) for each in (files, recent))
    chosen = files if recent_rows * _LARGE_SHARE > total else recent
    is_joined = all(len(_out_of_order(_alike(chosen, each))) < 2 for each in (True, False))
    if is_joined and not mixed and all(file.rows <= FILE_ROWS for file in recent):
        return True
    if sum(file.rows for file in chosen) > SORTED_HERE:
        _sort_in_tasks(warehouse, table, total)
        return True
    return _replace(warehouse, table, chosen, FILE_ROWS)


def files_of_gone(warehouse: Warehouse) -> list[str]:
    """List the files of `segments` in which all rows are of segments that are gone."""
    files = _list_files(warehouse.data_location(SEGMENTS), SEGMENTS)
    return [file.path for file in files or () if file.is_gone]


def join_files(warehouse: Warehouse, table: TableDefinition) -> bool:
    """Join all files of a small table into one, in the order of the clustering; the rows stay the same.

    False: that was not done, because the table is too large, or only Spark can write it.
    """
    location = warehouse.data_location(table)
    files = _list_files(location, table)
    if files is None or sum(file.rows for file in files) > SORTED_HERE:
        return False
    if sum(file.size_bytes for file in files) > _JOINED_BYTES:
        return False
    return len(files) < 2 or _replace(warehouse, table, files, SORTED_HERE)


def _replace(warehouse: Warehouse, table: TableDefinition, files: Sequence[_File], file_rows: int) -> bool:
    """Replace files by sorted ones with the same rows; False if only Spark can do it."""
    location = warehouse.data_location(table)
    pieces = [read_whole_file(location, file.path, table) for file in files]
    rows = pa.concat_tables(pieces).sort_by([(name, "ascending") for name in table.clustered_by])
    written = [
        write_file(location, table, part.slice(at, file_rows))
        for part in (_apart(rows) if table in SORTED_TABLES else (rows,))
        for at in range(0, part.num_rows, file_rows)
    ]
    with warehouse.commits() as transaction:
        return commit_rearranged(location, table, [file.path for file in files], written, transaction)


def _apart(rows: pa.Table) -> tuple[pa.Table, ...]:
    """Return the rows of segments that are gone, and the others."""
    if _STATUS not in rows.column_names:
        return (rows,)
    is_gone = pc.equal(rows[_STATUS], _GONE)
    return rows.filter(is_gone), rows.filter(pc.invert(is_gone))


def _is_gone(file: Row, table: TableDefinition) -> bool | None:
    """Tell by the statistics of a file whether all rows are of segments that are gone."""
    if _STATUS not in table.column_names:
        return False
    least, greatest = file.get(f"min.{_STATUS}"), file.get(f"max.{_STATUS}")
    if None in (least, greatest):
        return None
    # No status is less.
    return least == greatest == _GONE or (None if least == _GONE else False)


def _alike(files: Sequence[_File], is_gone: bool) -> list[_File]:
    return [file for file in files if file.is_gone is is_gone]


def _list_files(location: str, table: TableDefinition) -> list[_File] | None:
    """List the files with their first and last partition; None if the statistics of one are not known."""
    found = []
    for row in pa.table(open_newest(location).get_add_actions(flatten=True)).to_pylist():
        first, last = ((row.get(f"{end}.topic"), row.get(f"{end}.partition")) for end in ("min", "max"))
        if row.get("num_records") is None:
            return None
        if row["num_records"]:
            found.append(
                _File(
                    path=row["path"],
                    rows=row["num_records"],
                    size_bytes=row["size_bytes"],
                    first=first,
                    last=last,
                    is_gone=_is_gone(row, table),
                )
            )
    return found


def _out_of_order(files: Sequence[_File]) -> list[_File]:
    """Choose the files that are small, too large, or hold partitions between the first and the last of another file."""
    chosen, end = list[_File](), None
    # By their ends, as many files as can be are in order: a file with rows of all partitions comes last.
    for file in sorted(files, key=_by_end):
        is_of_size = FILE_ROWS // 2 <= file.rows <= FILE_ROWS and None not in (*file.first, *file.last)
        if is_of_size and (end is None or end <= file.first):
            end = file.last
        else:
            chosen.append(file)
    return chosen


def _by_end(file: _File) -> tuple[Any, ...]:
    return tuple((value is None, value if value is not None else 0) for value in (*file.last, *file.first))


def _sort_in_tasks(warehouse: Warehouse, table: TableDefinition, total: int) -> None:
    """Sort the whole table with Spark, which replaces its files in one commit."""
    files = -(-total // FILE_ROWS)
    order = [F.col(name) for name in table.clustered_by]
    if _STATUS in table.column_names:
        order.insert(0, F.col(_STATUS) == _GONE)
    rows = warehouse.read(table).repartitionByRange(files, *order).sortWithinPartitions(*order)
    writer = rows.write.format("delta").mode("overwrite").option("dataChange", "false")
    with warehouse.commits(), warehouse.encodings(table):
        writer.option("maxRecordsPerFile", FILE_ROWS).save(warehouse.location(table))
