"""Test that names of topics are only data, in every function and however it is called."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from coldlog.lookups.functions import FUNCTIONS
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse

NAMES = (
    "it's",
    "''",
    '"quoted"',
    "`ticks`",
    "a.b.c",
    "..",
    "back\\slash\\",
    "\\'",
    "new\nline\r\n\ttab",
    "x' OR '1'='1",
    "x'; DROP TABLE coldlog.segments; --",
    "/* comment */ -- :topic ? ${topic} {topic} %s",
    "q.topic",
    "topic",
    "NULL",
    "ünï-Ω-日本語-🪵",
    "e\u0301",
    "\u00e9",
    " lead and trail ",
    "UPPER",
    "upper",
    "\u202eright to left",
    "%",
    "_",
    "x' OR '1'='1'; DROP TABLE coldlog.segments; -- /* comment */ :topic ? ${topic} {topic} %s "
    "ünï-Ω-日本語-🪵\nline\r\n\t\u202eright to left '' \\' back\\slash\\",
)
"""No Kafka allows most of them. Some differ from others only by what a careless comparison passes over."""

HARDEST = NAMES[-1]
"""All that is hard to write as a literal; each way to ask for it costs a query."""

CALLS = {
    "offset_for_timestamp": "{topic}, 0, 5",
    "list_offsets": "{topic}, 0, 5",
    "max_timestamp": "{topic}, 0",
    "earliest_offset": "{topic}, 0",
    "latest_tiered_offset": "{topic}, 0",
    "next_segment_with_txn_index": "{topic}, 0, 0, 0",
    "aborted_transactions": "{topic}, 0, 0, 1000000",
    "segment_for_offset": "{topic}, 0, NULL, 999999",
}


def filled(table: TableDefinition, **columns: object) -> dict[str, object]:
    """Return a row with these columns; other columns that must not be NULL are empty."""
    empty: dict[str, object] = {"BIGINT": 0, "INT": 0, "STRING": "", "BOOLEAN": False, "SMALLINT": 0}
    required = {each.name: empty.get(each.type, []) for each in table.columns if each.required}
    return {**dict.fromkeys(table.column_names), **required, **columns}


@pytest.fixture(scope="module")
def answers(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[object, ...]]]:
    """Return the expected answer of each function for each name: every offset contains the name's number."""
    location: Path = tmp_path_factory.mktemp("names") / "warehouse"
    warehouse = Warehouse(spark=spark, uri=str(location))
    warehouse.create_missing()
    rows: dict[str, list[dict[str, object]]] = {table.name: [] for table in ALL_TABLES}
    for number, topic in enumerate(NAMES):
        at, ids = 1000 * (number + 1), {"topic": topic, "partition": 0, "topic_id": "id"}
        segment = {**ids, "segment_id": "s", "build_number": 1}
        places = {"start_offset": at, "end_offset": at + 9, "served_from_offset": at, "served_to_offset": 999_999}
        build = {"served_build_number": 1, "served_index_depth": "record"}
        facts = {"segment_leader_epochs": [{"leader_epoch": 0, "start_offset": at}], "running_max_timestamp_ms": 10}
        rows["segments"].append(filled(SEGMENTS, **segment, **places, **build, **facts))
        rows["offset_index"].append(filled(OFFSET_INDEX, **segment, base_offset=at, running_max_timestamp_ms=10))
        rows["time_index"].append(filled(TIME_INDEX, **segment, batch_base_offset=at, offset=at, timestamp_ms=10))
        rows["txn_index"].append(filled(TXN_INDEX, **segment, producer_id=at, first_offset=at, last_offset=at))
        range_ = {"log_from_offset": 0, "epoch_from_offset": 0, "to_offset": at, "start_offset": at}
        rows["txn_segments"].append(filled(TXN_SEGMENTS, **ids, segment_id=f"s{at}", **range_))
        known = {
            "latest_tiered_offset": at + 9,
            "log_start_offset": at,
            "max_timestamp_ms": 10,
            "max_timestamp_offset": at,
        }
        rows["partition_metadata"].append(filled(PARTITION_METADATA, **ids, is_current=True, **known))
    for table in ALL_TABLES:
        if rows[table.name]:
            warehouse.append(table, warehouse.local(table, rows[table.name]))
    attach_warehouse(spark, warehouse.uri)
    starts = [1000 * (number + 1) for number in range(len(NAMES))]
    return {
        "offset_for_timestamp": [(at, 10, 0, "FOUND", None, None, None) for at in starts],
        "list_offsets": [(0, "NONE", at, 10, 0, "remote_then_local", at + 10, None, None, None) for at in starts],
        "max_timestamp": [(10, at, None) for at in starts],
        "earliest_offset": [(at, None, None) for at in starts],
        "latest_tiered_offset": [(at + 9, None, None) for at in starts],
        "next_segment_with_txn_index": [(f"s{at}", at, 0, 0, False) for at in starts],
        "aborted_transactions": [(at, at, at, 0) for at in starts],
        "segment_for_offset": [("s", at, at + 9, 0) for at in starts],
    }


def literal(text: str) -> str:
    """As docs/how-to/ask-in-sql.md says. Without the last, Spark puts variables in place of ${...}, in literals too."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_name_under_lateral_has_its_own_answer(
    spark: SparkSession, answers: dict[str, list[tuple[object, ...]]], function: str
) -> None:
    asked = pa.table({"number": pa.array(range(len(NAMES)), pa.int64()), "topic": list(NAMES)})
    spark.createDataFrame(asked).createOrReplaceTempView("names")
    call = f"{function}({CALLS[function].format(topic='q.topic')})"
    rows = spark.sql(f"SELECT q.number, o.* FROM names q, LATERAL {call} o").collect()
    assert sorted(map(tuple, rows)) == [(number, *row) for number, row in enumerate(answers[function])]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_name_as_parameter_and_as_literal_has_its_own_answer(
    spark: SparkSession, answers: dict[str, list[tuple[object, ...]]], function: str
) -> None:
    named, written, positional = (CALLS[function].format(topic=each) for each in (":topic", literal(HARDEST), "?"))
    for rows in (
        spark.sql(f"SELECT * FROM {function}({named})", args={"topic": HARDEST}),
        spark.sql(f"SELECT * FROM {function}({written})"),
        spark.sql(f"SELECT * FROM {function}({positional})", args=[HARDEST]),
    ):
        assert [tuple(row) for row in rows.collect()] == [answers[function][-1]]
    assert spark.table("coldlog.segments").count() == len(NAMES)
