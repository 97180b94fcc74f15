"""Test that the tables equal, row by row, what a real broker reports about its archive."""

from __future__ import annotations

import gzip
import json

import duckdb
import pyarrow.parquet as pq
from deltalake import DeltaTable

from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tables.sql_names import register_tables
from contents.table_contents import rows_in
from worlds.golden_warehouse import golden_partitions
from worlds.kafka_sample import KAFKA_SAMPLE, true_segments


def test_segments_agree_with_the_metadata_topic(golden: Warehouse) -> None:
    rows = {row["segment_id"]: row for row in rows_in(golden, SEGMENTS)}
    truth = true_segments("COPY_SEGMENT_FINISHED")
    for segment in truth:
        row = rows.pop(segment["segment_id"])
        facts: dict[str, object] = dict(segment)
        for name in ("topic", "partition", "topic_id", "start_offset", "end_offset"):
            assert row[name] == facts[name]
        assert row["size_bytes"] == facts["size"]
        assert row["max_timestamp_ms"] == facts["rec_max_ts"]
        assert row["min_timestamp_ms"] == facts["rec_min_ts"]
        assert row["txn_index_empty"] == facts["txn_idx_empty"]
        assert (row["batch_count"], row["record_count"]) == (facts["batches"], facts["records"])
        assert row["control_batch_count"] == facts["control_batches"]
        # Metadata begins an epoch at the log start where DeleteRecords had moved that into the segment already.
        for each in row["segment_leader_epochs"]:
            assert each["start_offset"] <= segment["leader_epochs"][str(each["leader_epoch"])]
        if facts["rec_max_ts"] >= 0:  # type: ignore[operator]
            assert row["metadata_max_timestamp_ms"] == facts["max_ts"]
    assert [(row["topic"], row["index_status"], row["state"]) for row in rows.values()] == [
        ("crashy-upload", "incomplete", "COPY_SEGMENT_STARTED")
    ]
    assert len(truth) == 281


def test_offset_index_agrees_with_every_batch(golden: Warehouse) -> None:
    found: dict[str, list[dict[str, object]]] = {}
    for row in golden.read(OFFSET_INDEX).orderBy("segment_id", "position").toArrow().to_pylist():
        found.setdefault(row["segment_id"], []).append(row)
    names = {
        "position": "pos", "size_bytes": "size", "base_offset": "base", "last_offset": "last", "record_count":
        "records", "codec": "codec", "timestamp_type": "ts_type", "max_timestamp_ms": "max_ts", "producer_id": "pid",
        "producer_epoch": "pepoch", "base_sequence": "bseq", "is_transactional": "txn", "is_control": "control",
        "leader_epoch": "leader_epoch",
    }  # fmt: skip
    compared = 0
    for path in sorted((KAFKA_SAMPLE / "truth" / "batches").glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            batch = json.loads(line)
            row = found[batch["segment_id"]].pop(0)
            assert {name: row[name] for name in names} == {name: batch[true] for name, true in names.items()}
            compared += 1
    assert compared > 5000
    assert not any(found.values())


def test_txn_index_agrees_with_every_aborted_transaction(golden: Warehouse) -> None:
    rows = rows_in(golden, TXN_INDEX)
    facts = ("segment_id", "producer_id", "first_offset", "last_offset", "last_stable_offset")
    found = {tuple(row[name] for name in facts) for row in rows}
    truth = {
        (segment["segment_id"], each["pid"], each["first"], each["last"], each["lso"])
        for segment in true_segments("COPY_SEGMENT_FINISHED")
        for each in segment["aborted"]
    }
    assert found == truth
    assert len(rows) == len(truth) > 100


def test_partition_metadata_agrees_with_the_broker(golden: Warehouse) -> None:
    rows = {(row["topic"], row["partition"]): row for row in rows_in(golden, PARTITION_METADATA)}
    highest: dict[tuple[object, object], tuple[int, int]] = {}
    for stair in rows_in(golden, TIME_INDEX):
        place, found = (stair["topic"], stair["partition"]), (stair["timestamp_ms"], -stair["offset"])
        highest[place] = max(found, highest.get(place, found))
    with_segments = [truth for truth in golden_partitions() if truth["archive_end"] != -1]
    for truth in with_segments:
        row = rows[truth["topic"], truth["partition"]]
        assert row["latest_tiered_offset"] == truth["archive_end"]
        assert row["earliest_offset"] == truth["log_start"]
        assert row["log_start_offset"] == truth["log_start"]
        assert row["gap_count"] == 0
        timestamp_ms, negative_offset = highest[truth["topic"], truth["partition"]]
        assert (row["max_timestamp_ms"], row["max_timestamp_offset"]) == (timestamp_ms, -negative_offset)
    assert len(rows) == len(with_segments) == 30


def test_other_engines_read_the_same_rows(golden: Warehouse) -> None:
    for table in (SEGMENTS, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, PARTITION_METADATA):
        by_spark = golden.read(table).toArrow()
        delta = DeltaTable(golden.location(table))
        assert delta.protocol().min_reader_version == 1
        by_delta_rs = delta.to_pyarrow_table(columns=list(table.column_names))
        dataset = delta.to_pyarrow_dataset()
        by_duckdb = duckdb.from_arrow(dataset).select(*table.column_names).to_arrow_table()
        keys = [(name, "ascending") for name in table.key]
        expected = by_spark.sort_by(keys).to_pylist()
        assert by_delta_rs.sort_by(keys).to_pylist() == expected
        assert by_duckdb.sort_by(keys).to_pylist() == expected


def test_registered_tables_show_the_comments_of_their_columns(golden: Warehouse) -> None:
    register_tables(golden)
    for table in (SEGMENTS, TXN_INDEX):
        rows = golden.spark.sql(f"DESCRIBE TABLE EXTENDED coldlog.{table.name}").collect()
        comments = {row["col_name"]: row["comment"] for row in rows[: len(table.columns)]}
        assert comments == {column.name: column.comment for column in table.columns}
        assert all(comments.values())


def test_ascending_integers_are_delta_packed(golden: Warehouse) -> None:
    for table in (OFFSET_INDEX, TIME_INDEX):
        for file in DeltaTable(golden.location(table)).file_uris():
            groups = pq.ParquetFile(file.removeprefix("file://")).metadata.row_group(0)
            encodings = {groups.column(i).path_in_schema: groups.column(i).encodings for i in range(groups.num_columns)}
            # RLE: which values are missing.
            assert {each for name in table.delta_packed for each in encodings[name]} - {"RLE"} == {
                "DELTA_BINARY_PACKED"
            }
