"""Test that table files written by tasks equal what Spark's own writer makes of the same rows."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import gettempdir

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from coldlog.archive.stores.s3_client import S3Options
from coldlog.errors import RetriableError, UsageError
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.delta.delta_log import add_files
from coldlog.tables.delta.files.data_files import DataFile, DataFileWriter, _FileContent, _put
from coldlog.tables.delta.warehouse import Warehouse

_TEXTS = ("a", "orders", "ö" * 40)


def rows_of(table: TableDefinition, count: int) -> pa.Table:
    """Every second optional value is missing; numbers include the limits of their types."""

    def value(kind: pa.DataType, at: int) -> object:
        if pa.types.is_string(kind):
            return _TEXTS[at % len(_TEXTS)]
        if pa.types.is_boolean(kind):
            return at % 2 == 0
        bits = {pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}[kind]
        return (-(2**bits), 2**bits - 1, 0, at)[at % 4]

    return pa.table(
        {
            each.name: pa.array(
                [None if each.nullable and at % 2 else value(each.type, at) for at in range(count)], each.type
            )
            for each in table.arrow_schema
        },
        schema=table.arrow_schema,
    )


def write_file(table: TableDefinition, rows: pa.Table, location: str, *, rows_a_piece: int) -> DataFile:
    with closing(DataFileWriter(table=table)) as writer:
        for piece in rows.to_batches(max_chunksize=rows_a_piece):
            writer.add(dict(zip(piece.schema.names, piece.columns, strict=True)))
        return writer.finish(location, S3Options())


def last_commit(warehouse: Warehouse, table: TableDefinition) -> dict[str, dict[str, object]]:
    """The last action of each kind in the newest commit."""
    log = max((Path(warehouse.uri) / table.name / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines() if line]
    return {kind: content for action in actions for kind, content in action.items()}


def _add_by_delta(warehouse: Warehouse, table: TableDefinition, files: Sequence[DataFile]) -> None:
    add_files(warehouse.spark, warehouse.location(table), files, [])


@pytest.mark.parametrize("add", [Warehouse.add_files, _add_by_delta])
@pytest.mark.parametrize("table", INDEX_TABLES, ids=lambda table: table.name)
def test_added_file_equals_a_file_that_spark_appends(
    spark: SparkSession,
    tmp_path: Path,
    table: TableDefinition,
    add: Callable[[Warehouse, TableDefinition, Sequence[DataFile]], None],
) -> None:
    ours, theirs = (Warehouse(spark=spark, uri=str(tmp_path / name)) for name in ("our own #ö", "theirs"))
    rows = rows_of(table, 101)
    for warehouse in (ours, theirs):
        warehouse.create_missing()
    add(ours, table, [write_file(table, rows, ours.data_location(table), rows_a_piece=7)])
    theirs.append(table, theirs.local(table, rows).coalesce(1))

    added, appended = (last_commit(warehouse, table) for warehouse in (ours, theirs))
    assert added.keys() == appended.keys()
    for key in ("operation", "operationParameters", "isBlindAppend"):
        assert added["commitInfo"][key] == appended["commitInfo"][key]
    our_statistics, their_statistics = (json.loads(str(each["add"]["stats"])) for each in (added, appended))
    # Delta cuts long texts, and says something larger for a largest one.
    for statistics in (our_statistics, their_statistics):
        for end in ("minValues", "maxValues"):
            statistics[end] = {name: value for name, value in statistics[end].items() if not isinstance(value, str)}
    assert our_statistics == their_statistics
    assert len(our_statistics["maxValues"]) >= 3

    expected = sorted(map(str, rows.to_pylist()))
    assert sorted(str(row.asDict()) for row in ours.read(table).collect()) == expected
    assert sorted(map(str, DeltaTable(Path(ours.uri) / table.name).to_pyarrow_table().to_pylist())) == expected


def test_file_of_a_table_that_needs_delta_is_added_by_delta(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    identifier = warehouse.identifier(OFFSET_INDEX)
    spark.sql(f"ALTER TABLE {identifier} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    rows = rows_of(OFFSET_INDEX, 9)
    file = write_file(OFFSET_INDEX, rows, warehouse.data_location(OFFSET_INDEX), rows_a_piece=9)
    warehouse.add_files(OFFSET_INDEX, [file])
    assert str(last_commit(warehouse, OFFSET_INDEX)["commitInfo"]["engineInfo"]).startswith("Apache-Spark")
    assert warehouse.read(OFFSET_INDEX).count() == 9


def test_rows_keep_their_order_across_pieces_and_row_groups(tmp_path: Path) -> None:
    assert TIME_INDEX.row_group_rows is not None
    rows = _of_segments(rows_of(TIME_INDEX, 2 * TIME_INDEX.row_group_rows + 5), ["a segment"])
    file = write_file(TIME_INDEX, rows, str(tmp_path), rows_a_piece=50_000)
    content = pq.ParquetFile(tmp_path / file.path)
    groups = [content.metadata.row_group(group).num_rows for group in range(content.metadata.num_row_groups)]
    assert groups == [TIME_INDEX.row_group_rows] * 2 + [5]
    assert content.read().to_pylist() == rows.to_pylist()
    assert file.size_bytes == (tmp_path / file.path).stat().st_size
    # A group whose texts came by several dictionaries has one of its own.
    names = content.schema_arrow.names
    encodings = {
        name: set(content.metadata.row_group(0).column(names.index(name)).encodings)
        for name in ("topic", *TIME_INDEX.delta_packed)
    }
    assert encodings.pop("topic") == {"PLAIN", "RLE", "RLE_DICTIONARY"}
    assert all("DELTA_BINARY_PACKED" in each and "PLAIN" not in each for each in encodings.values())


def _of_segments(rows: pa.Table, segments: Sequence[str]) -> pa.Table:
    """The same rows, an equal part of them of each segment."""
    each = rows.num_rows // len(segments)
    ids = [segments[min(at // each, len(segments) - 1)] for at in range(rows.num_rows)]
    return rows.set_column(rows.schema.names.index("segment_id"), rows.schema.field("segment_id"), pa.array(ids))


def test_a_row_group_of_some_thousand_rows_ends_with_a_segment(tmp_path: Path) -> None:
    # A lookup decodes whole row groups; small segments must not cost it the rows of twenty others.
    rows = _of_segments(rows_of(OFFSET_INDEX, 30_000), [f"segment {number}" for number in range(10)])
    file = write_file(OFFSET_INDEX, rows, str(tmp_path), rows_a_piece=1_500)
    content = pq.ParquetFile(tmp_path / file.path)
    groups = [content.metadata.row_group(group).num_rows for group in range(content.metadata.num_row_groups)]
    assert groups == [9_000, 9_000, 9_000, 3_000]
    assert content.read().to_pylist() == rows.to_pylist()


def test_required_value_that_is_missing_is_refused() -> None:
    rows = rows_of(OFFSET_INDEX, 3).to_batches()[0]
    columns = dict(zip(rows.schema.names, rows.columns, strict=True)) | {"position": pa.array([1, None, 2], pa.int64())}
    with (
        closing(DataFileWriter(table=OFFSET_INDEX)) as writer,
        pytest.raises(ValueError, match=r"offset_index\.position is required"),
    ):
        writer.add(columns)


@pytest.mark.parametrize("is_row_group", [True, False], ids=["a row group", "the end of the file"])
def test_full_temporary_directory_is_reported_with_its_name(tmp_path: Path, *, is_row_group: bool) -> None:
    rows = rows_of(TIME_INDEX, 3 * (TIME_INDEX.row_group_rows or 0) if is_row_group else 5_000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, limits[1]))  # files of a kibibyte, as on a full disk
    try:
        with pytest.raises(RetriableError, match=rf"temporary file in {gettempdir()} cannot be written: .*set TMPDIR"):
            write_file(TIME_INDEX, rows, str(tmp_path), rows_a_piece=50_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_many_small_pieces_take_no_more_memory_than_their_rows() -> None:
    # In a process of its own, whose memory nobody else uses: 8,000 segments of three rows.
    program = """
import resource
import pyarrow as pa
from coldlog.tables.delta.files.data_files import DataFileWriter
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from test_data_files import rows_of

rows = rows_of(OFFSET_INDEX, 3).to_batches()[0]
writer = DataFileWriter(table=OFFSET_INDEX)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(8_000):
    copy = pa.ipc.read_record_batch(pa.py_buffer(rows.serialize().to_pybytes()), rows.schema)
    writer.add(dict(zip(copy.schema.names, copy.columns)))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
writer.close()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 40 << 10, "KiB"


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RetriableError, match="cannot be written: No such file or directory; driver and workers need"):
        write_file(OFFSET_INDEX, rows_of(OFFSET_INDEX, 3), str(tmp_path / "gone"), rows_a_piece=3)


def test_full_folder_keeps_no_partial_file(tmp_path: Path) -> None:
    place = tmp_path / "table"
    place.mkdir()
    with (tmp_path / "content").open("xb+") as content:
        content.write(bytes(1 << 16))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, limits[1]))
        try:
            with pytest.raises(RetriableError, match="cannot be written: File too large; .* with space"):
                _put(str(place), S3Options(), "part", _FileContent(file=content, size_bytes=1 << 16))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(place.iterdir())


def test_a_warehouse_on_another_file_system_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    # Any scheme that is neither a folder nor S3; on many clusters it is HDFS's, which needs a server.
    spark.conf.set("fs.viewfs.mounttable.cluster.link./data", tmp_path.as_uri())
    try:
        with pytest.raises(UsageError, match="is on viewfs here, but a warehouse must be in a folder .* or on S3"):
            Warehouse(spark=spark, uri="viewfs://cluster/data").create_missing()
    finally:
        spark.conf.unset("fs.viewfs.mounttable.cluster.link./data")
    assert not list(tmp_path.iterdir())
