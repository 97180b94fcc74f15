"""Test that a damaged table is reported in one line: which file, what is wrong, what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.errors import ColdlogError
from coldlog.runtime.spark.spark_failures import explain_failure
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS as TABLE
from coldlog.tables.delta.warehouse import Warehouse
from planning import as_large_tables


@pytest.fixture(scope="module")
def sound(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse of one table, in three commits of which two have a file."""
    warehouse = Warehouse(spark=spark, uri=str(tmp_path_factory.mktemp("sound") / "warehouse"))
    spark.sql(TABLE.create_statement(warehouse.identifier(TABLE), warehouse.location(TABLE)))
    for name in ("a", "b"):
        warehouse.append(TABLE, warehouse.local(TABLE, [{"name": name, "size_bytes": 1, "why": "no segment"}]))
    return Path(warehouse.uri)


def _break_newest_commit(table: Path) -> None:
    newest = max((table / "_delta_log").glob("*.json"))
    newest.write_text("{broken")
    for checksum in (table / "_delta_log").glob("*.crc"):
        checksum.unlink()
    for checksum in (table / "_delta_log").glob(".*.crc"):
        checksum.unlink()


def _lose_commit(number: int) -> Callable[[Path], None]:
    return lambda table: (table / "_delta_log" / f"{number:020d}.json").unlink()


def _lose_files(table: Path) -> None:
    for path in table.glob("*.parquet"):
        path.unlink()


def _cut_files(table: Path) -> None:
    for path in table.glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:100])
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _put_a_file_there(table: Path) -> None:
    shutil.rmtree(table)
    table.touch()


def _lose_log(table: Path) -> None:
    shutil.rmtree(table / "_delta_log")


def _has(warehouse: Warehouse) -> object:
    return warehouse.has(TABLE)


def _read(warehouse: Warehouse) -> object:
    return warehouse.read(TABLE).collect()


def _read_with_spark(warehouse: Warehouse) -> object:
    with as_large_tables():
        return _read(warehouse)


def _optimize(warehouse: Warehouse) -> object:
    return warehouse.spark.sql(f"OPTIMIZE {warehouse.identifier(TABLE)}")


def _register(warehouse: Warehouse) -> object:
    warehouse.spark.sql("CREATE DATABASE IF NOT EXISTS damaged")
    return warehouse.spark.sql(f"CREATE TABLE damaged.strays USING DELTA LOCATION '{warehouse.location(TABLE)}'")


@pytest.mark.parametrize(
    ("damage", "use", "told"),
    [
        (
            _break_newest_commit,
            _has,
            "a file of the log of a table cannot be read: {table}/_delta_log/00000000000000000002.json "
            "(JsonParseException: ",
        ),
        (_lose_commit(1), _has, "{table}/_delta_log is damaged: Versions (0, 2) are not contiguous"),
        (
            _lose_commit(0),
            _has,
            "the log of a table is damaged: {table}/_delta_log/00000000000000000000.json: Unable to reconstruct state",
        ),
        (_lose_files, _read_with_spark, "a file of a table is missing: {table}/part-"),
        (_lose_files, _read, "{table}/part-"),
        (_lose_files, _optimize, "a file of a table is missing: {table}/part-"),
        (_cut_files, _read_with_spark, "a file of a table cannot be read: {table}/part-"),
        (_cut_files, _read, "{table}/part-"),
        (_put_a_file_there, _register, "{table} is not a table, but a file or a folder without Delta's log"),
        (_lose_log, _register, "{table} is not a table, but a file or a folder without Delta's log"),
    ],
    ids=[
        *("commit", "gap", "first-commit", "files", "small-files", "files-of-optimize"),
        *("cut-files", "cut-small-files", "plain-file", "no-log"),
    ],
)
def test_damaged_table_is_reported_on_one_line(
    spark: SparkSession,
    sound: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    use: Callable[[Warehouse], object],
    told: str,
) -> None:
    copy = shutil.copytree(sound, tmp_path / "a warehouse")
    damage(copy / TABLE.name)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - py4j's or pyspark's, as it happens
        use(Warehouse(spark=spark, uri=str(copy)))
    failed = raised.value
    explained = str(failed) if isinstance(failed, ColdlogError) else explain_failure(failed)
    assert explained is not None
    assert explained.startswith(told.format(table=copy / TABLE.name))
    assert "run rebuild_tables" in explained
    assert "\n" not in explained


def test_other_errors_of_spark_keep_their_traceback(spark: SparkSession) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - pyspark's
        spark.sql("SELECT no_such_column").collect()
    assert explain_failure(raised.value) is None
