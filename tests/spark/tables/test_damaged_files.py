"""Test that readers answer from a damaged warehouse as from a sound one, or name the damaged file."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from coldlog.errors import ColdlogError
from coldlog.launch.spark_options import PAGE_CHECKSUMS
from coldlog.reader import OffsetReader
from coldlog.runtime.spark.spark_failures import explain_failure
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.file_checksums import checksums_path
from coldlog.tables.delta.log_check import create_checkpoint
from coldlog.tables.delta.warehouse import Warehouse
from damage.damaged_tables import (
    Question,
    list_damageable,
)
from worlds.golden_warehouse import golden_partitions, golden_queries

PLACES = [
    (str(each["topic"]), int(str(each["partition"])))
    for each in golden_partitions()
    if int(str(each["archive_end"])) >= 0
]
_SPECIAL = (-2, -3, -5)


def questions() -> list[Question]:
    """Times of the broker's queries, and every partition's ends."""
    queries = random.Random(1).sample(golden_queries(), 100)
    times = [(str(each["topic"]), int(str(each["partition"])), int(str(each["ts"]))) for each in queries]
    return times + [(*place, special) for place in PLACES for special in _SPECIAL]


@pytest.fixture
def copy(golden_uri: str, tmp_path: Path) -> Path:
    """A warehouse that the test may damage."""
    return Path(shutil.copytree(golden_uri, tmp_path / "warehouse"))


def test_every_file_that_spark_and_coldlog_write_has_checksums(copy: Path) -> None:
    data = [each for each in list_damageable(copy) if each.suffix in (".parquet", ".json")]
    assert len(data) > 20
    assert [each for each in data if not Path(checksums_path(str(each))).is_file()] == []


@pytest.mark.parametrize("table", ["segments", "partition_metadata", "offset_index", "time_index"])
@pytest.mark.parametrize("damage", ["emptied", "emptied, without checksums", "removed"])
def test_version_whose_newest_commit_is_lost_is_refused(copy: Path, table: str, damage: str) -> None:
    """A power loss leaves an empty file, for which delta-rs opens a version without its rows."""
    newest = max((copy / table / "_delta_log").glob("*.json"))
    if damage == "removed":
        newest.unlink()
    else:
        newest.write_bytes(b"")
    if damage == "emptied, without checksums":
        Path(checksums_path(str(newest))).unlink()
    with pytest.raises(ColdlogError, match=f"{newest} is damaged: .*; restore it from a copy, or run rebuild_tables"):
        OffsetReader(str(copy))


def test_commit_that_is_missing_between_others_is_refused(copy: Path) -> None:
    lost = copy / "segments" / "_delta_log" / f"{1:020d}.json"
    lost.unlink()
    with pytest.raises(ColdlogError, match=f"{lost} is damaged: it is missing"):
        OffsetReader(str(copy))


def test_a_lost_commit_is_refused_by_spark_too(spark: SparkSession, copy: Path) -> None:
    newest = max((copy / "segments" / "_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    warehouse = Warehouse(spark=spark, uri=str(copy))
    for use in (
        partial(warehouse.read, SEGMENTS),
        partial(warehouse.view, SEGMENTS),
        warehouse.create_missing,
        partial(attach_warehouse, spark, str(copy)),
    ):
        with pytest.raises(ColdlogError, match=f"{newest} is damaged: it is empty"):
            use()


def _damage_pages(file: Path) -> int:
    """Change the last byte of each column chunk, which is in its last page, and remove the checksums of the file, as
    if an object store held it; the number of changed bytes."""
    content = bytearray(file.read_bytes())
    metadata = pq.read_metadata(file)
    ends = set()
    for column in range(metadata.num_columns):
        chunk = metadata.row_group(0).column(column)
        begins = [at for at in (chunk.dictionary_page_offset, chunk.data_page_offset) if at]
        ends.add(min(begins) + chunk.total_compressed_size - 1)
    for end in ends:
        content[end] ^= 0x10
    file.write_bytes(content)
    Path(checksums_path(str(file))).unlink()
    return len(ends)


@pytest.mark.parametrize("table", ["segments", "partition_metadata", "time_index"])
def test_damaged_page_is_refused_also_without_checksums_of_the_file(copy: Path, table: str) -> None:
    """Files of `segments` and `partition_metadata` are Spark's, those of `time_index` coldlog's."""
    files = sorted((copy / table).glob("part-*.parquet"))
    assert all(_damage_pages(file) >= 5 for file in files)
    with (
        OffsetReader(str(copy)) as reader,
        pytest.raises(ColdlogError, match="CRC checksum verification failed") as told,
    ):
        reader.list_offsets(questions())
    assert any(file.name in str(told.value) for file in files)
    assert "restore it from a copy" in str(told.value)


@pytest.mark.parametrize("with_checksums", [True, False], ids=["hadoop", "parquet"])
def test_damaged_file_is_refused_by_spark(spark: SparkSession, copy: Path, with_checksums: bool) -> None:
    """Spark checks the checksums of files in folders, and those of pages in any store."""
    for file in (copy / TIME_INDEX.name).glob("part-*.parquet"):
        stored = Path(checksums_path(str(file)))
        content = stored.read_bytes()
        _damage_pages(file)
        if with_checksums:
            stored.write_bytes(content)
    rows = Warehouse(spark=spark, uri=str(copy)).read(TIME_INDEX)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - py4j's or pyspark's, as it happens
        rows.selectExpr("sum(hash(*))").collect()
    explained = explain_failure(raised.value)
    assert explained is not None
    assert explained.startswith(f"a file of a table cannot be read: {copy / TIME_INDEX.name}/part-")
    assert ("ChecksumException" if with_checksums else "CRC checksum verification failed") in explained


def test_session_that_somebody_else_started_verifies_pages_too(spark: SparkSession, golden_uri: str) -> None:
    for key in PAGE_CHECKSUMS:
        spark.conf.set(key, "false")
    attach_warehouse(spark, golden_uri)
    assert {key: spark.conf.get(key) for key in PAGE_CHECKSUMS} == PAGE_CHECKSUMS


@pytest.mark.parametrize("has_checksums", [True, False])
def test_missing_commit_of_the_newest_checkpoint_is_refused_by_its_name(
    spark: SparkSession, copy: Path, has_checksums: bool
) -> None:
    log = copy / TIME_INDEX.name / "_delta_log"
    create_checkpoint(DeltaTable(log.parent), str(log.parent))
    for each in () if has_checksums else list(log.glob(".*.crc")):
        each.unlink()
    newest = max(log.glob("*.json"))
    newest.unlink()
    with pytest.raises(ColdlogError, match=f"{newest} is damaged: it is missing"):
        attach_warehouse(spark, str(copy))


@pytest.mark.parametrize("name", [b"metaData", b"key_value", b"tags"])
def test_checkpoint_that_only_spark_cannot_read_is_refused_by_its_name(
    spark: SparkSession, copy: Path, name: bytes
) -> None:
    """One bit of a column's name is flipped, and there are no checksums. delta-rs does not need these columns."""
    log = copy / TIME_INDEX.name / "_delta_log"
    create_checkpoint(DeltaTable(log.parent), str(log.parent))
    for each in log.glob(".*.crc"):
        each.unlink()
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    content = bytearray(checkpoint.read_bytes())
    content[content.rindex(bytes([0x18, len(name)]) + name) + 2] ^= 1
    checkpoint.write_bytes(content)
    with pytest.raises(ColdlogError, match=f"{checkpoint} is damaged: Spark cannot read it .* run rebuild_tables"):
        attach_warehouse(spark, str(copy))
