"""Compare answers from the tables with those of a real Kafka 4.2.1 broker about the sample archive."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest

from coldlog.archive.open_archive import open_archive
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps, list_offsets
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import rows_in
from worlds.golden_warehouse import build_settings, golden_partitions, golden_queries, is_true_answer
from worlds.kafka_sample import KAFKA_SAMPLE


@pytest.fixture(scope="module")
def asked() -> pa.Table:
    return requests_from_rows([(q["topic"], q["partition"], q["ts"]) for q in golden_queries()])


@pytest.mark.parametrize("broker_compatible", [True, False])
def test_every_answer_of_the_broker_is_given(golden: Warehouse, asked: pa.Table, broker_compatible: bool) -> None:
    """By the exact rule: the first record at or after the timestamp."""
    answers = find_offsets_for_timestamps(golden, asked, LookupOptions(broker_compatible=broker_compatible)).to_pylist()
    wrong = [
        (query, answer)
        for query, answer in zip(golden_queries(), answers, strict=True)
        if not is_true_answer(query, answer, broker_compatible=broker_compatible)
    ]
    assert wrong == []
    assert len(answers) > 9000


def test_sql_function_gives_the_same_answers_under_lateral(golden: Warehouse, asked: pa.Table) -> None:
    attach_warehouse(golden.spark, golden.uri)
    golden.spark.createDataFrame(asked).createOrReplaceTempView("asked")
    rows = golden.spark.sql(
        "SELECT q.request_index, o.offset, o.offset_timestamp_ms, o.leader_epoch "
        "FROM asked q, LATERAL offset_for_timestamp(q.topic, q.partition, q.timestamp_ms) o"
    ).toArrow()
    by_function = rows.sort_by("request_index").to_pylist()
    in_bulk = find_offsets_for_timestamps(golden, asked).to_pylist()
    assert [_facts(row) for row in by_function] == [_facts(row) for row in in_bulk]


def test_batch_depth_gives_the_same_answers(golden: Warehouse, golden_shallow: Warehouse, asked: pa.Table) -> None:
    open_layout = partial(open_archive, str(KAFKA_SAMPLE / "archive"), "local_tiered_storage")
    batches = BatchReader(open_layout=open_layout, limits=build_settings().options.limits)
    for is_broker in (False, True):
        answers = find_offsets_for_timestamps(
            golden_shallow, asked, LookupOptions(broker_compatible=is_broker, batches=batches)
        )
        decoded = find_offsets_for_timestamps(golden, asked, LookupOptions(broker_compatible=is_broker))
        assert answers.to_pylist() == decoded.to_pylist()
    assert len(rows_in(golden_shallow, TIME_INDEX)) == 0


def test_sidecar_depth_gives_the_same_answers(
    golden_with_events: Warehouse, golden_sidecar: Warehouse, asked: pa.Table
) -> None:
    """Only segments in which the log starts are indexed at batch depth."""
    open_layout = partial(open_archive, str(KAFKA_SAMPLE / "archive"), "local_tiered_storage")
    batches = BatchReader(open_layout=open_layout, limits=build_settings().options.limits)
    latest = [(row["topic"], row["partition"], -3) for row in golden_partitions()]
    for is_broker in (False, True):
        options = LookupOptions(broker_compatible=is_broker, batches=batches)
        answers = find_offsets_for_timestamps(golden_sidecar, asked, options)
        decoded = find_offsets_for_timestamps(golden_with_events, asked, LookupOptions(broker_compatible=is_broker))
        assert answers.to_pylist() == decoded.to_pylist()
        special = requests_from_rows(latest)
        assert list_offsets(golden_sidecar, special, options).equals(list_offsets(golden_with_events, special, options))
    depths = golden_sidecar.read(SEGMENTS).where("served_from_offset IS NOT NULL").groupBy("served_index_depth").count()
    assert {row[0]: row[1] for row in depths.collect()} == {"sidecar": 273, "batch": 8}
    assert len(rows_in(golden_sidecar, TIME_INDEX)) == 0


def _facts(answer: dict[str, object]) -> tuple[object, object, object]:
    return answer["offset"], answer["offset_timestamp_ms"], answer["leader_epoch"]
