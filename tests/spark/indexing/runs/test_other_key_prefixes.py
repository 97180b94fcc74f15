"""Test that a key prefix that is missing in the settings is reported if the metadata topic has it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from coldlog.archive.layouts.aiven_layout import AivenLayout
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.indexing.scan.other_key_prefixes import count_other_prefixes, find_other_key_prefixes
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from stores.memory_store import MemoryStore


def noted(prefix: str) -> bytes:
    raw = prefix.encode()
    return bytes([1, 1, len(raw) + 1, len(raw) + 1]) + raw


def test_unknown_prefixes_are_counted_and_metadata_of_other_plugins_is_ignored() -> None:
    contents = [noted("old/"), noted("old/"), noted("new/"), noted(""), b"", b"\x01\x00\x01\x02", b"of another plugin"]
    assert count_other_prefixes(contents, ("new/",)) == {"old/": 2, "": 1}
    assert count_other_prefixes(contents, ("new/", "old/", "")) == {}


def segment(number: int, *, is_listed: bool, state: str, metadata: bytes | None) -> dict[str, object]:
    return {
        "topic": "orders", "partition": 0, "topic_id": "A" * 22, "start_offset": number, "segment_id": f"s{number}",
        "state": state, "state_source": "events", "is_listed": is_listed, "objects": [], "missing_kinds": [],
        "index_status": "gone", "custom_metadata": metadata,
    }  # fmt: skip


def test_only_finished_segments_that_are_not_listed_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    finished = "COPY_SEGMENT_FINISHED"
    rows = [
        segment(0, is_listed=False, state=finished, metadata=noted("old/")),
        segment(1, is_listed=True, state=finished, metadata=noted("listed/")),
        segment(2, is_listed=False, state="DELETE_SEGMENT_FINISHED", metadata=noted("deleted/")),
        segment(3, is_listed=False, state=finished, metadata=None),
    ]
    warehouse.append(SEGMENTS, warehouse.local(SEGMENTS, rows))
    store = MemoryStore({})
    assert find_other_key_prefixes(warehouse, AivenLayout(store=store)) == {"old/": 1}
    assert find_other_key_prefixes(warehouse, AivenLayout(store=store, key_prefixes=("", "old/"))) == {}
    assert find_other_key_prefixes(warehouse, LocalTieredStorageLayout(store=store)) == {}
