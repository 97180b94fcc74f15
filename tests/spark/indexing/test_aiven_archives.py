"""Test the whole pipeline on archives of the Aiven plugin: broker's answers, keys added later, crashed copies."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from coldlog.archive.layouts.aiven_keys import list_key_ids
from coldlog.archive.layouts.aiven_layout import AivenLayout
from coldlog.archive.open_archive import open_archive
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.builds.build import build_indexes
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.indexing.scan.scan import scan_segments
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.reader import OffsetReader
from coldlog.tables.definitions.discrepancies import DISCREPANCIES
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.problems_view import problems_of
from contents.table_contents import rows_in
from stores.memory_store import MemoryStore, ReadRange
from worlds.aiven_sample import (
    AIVEN_SAMPLE,
    TrueAnswer,
    archive_of,
    finished_segments,
    key_files,
    keys_setting,
    true_answers,
    true_segments,
)
from worlds.aiven_worlds import SHALLOW, SIDECAR, TOGETHER, keys_named, open_variant
from worlds.golden_warehouse import build_settings, run_pipeline

LIMITS = DecodeLimits(max_batch_bytes=64 << 20, max_decompressed_bytes=64 << 20)


@pytest.fixture(scope="module")
def listed(spark: SparkSession, aiven_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Both archives of `aiven`, indexed without their metadata topics."""
    folder = Path(aiven_uri).parent
    archive, location = open_archive(str(folder / "archive"), "aiven"), tmp_path_factory.mktemp("listed") / "warehouse"
    return run_pipeline(spark, archive, location, log_start_offsets=folder / "log_starts.csv")


def segments_of(warehouse: Warehouse) -> dict[str, dict[str, Any]]:
    return {row["segment_id"]: row for row in rows_in(warehouse, SEGMENTS)}


def require_true_segments(warehouse: Warehouse, variant: str) -> None:
    """Check that every finished segment is indexed and equals its announcement by the broker."""
    rows = segments_of(warehouse)
    for segment_id, true in finished_segments(variant).items():
        row = rows[segment_id]
        found = row["topic"], row["partition"], row["topic_id"], row["start_offset"], row["end_offset"]
        wanted = true["topic"], true["partition"], true["topic_id"], true["start_offset"], true["end_offset"]
        assert found == wanted
        assert (row["index_status"], row["size_bytes"]) == ("indexed", true["size"])
        assert row["metadata_max_timestamp_ms"] == true["max_ts"]
        assert row["txn_index_empty"] == (true["original"]["transaction"] is None)
        assert {each["name"]: each["size_bytes"] for each in row["objects"]} == true["objects"]
        assert [each["kind"] for each in row["objects"]] == ["log", "indexes", "manifest"]


def require_true_answers(warehouse: Warehouse, variant: str, options: LookupOptions | None = None) -> None:
    """Check every answer that the broker gave from the archive. With read_committed, the archive has no answer after
    the start of a transaction whose end is not archived."""
    stable = {(row["topic"], row["partition"]): row["stable_offset"] for row in rows_in(warehouse, PARTITION_METADATA)}
    with OffsetReader(warehouse.uri, options) as reader:
        for level, is_committed in (("read_uncommitted", False), ("read_committed", True)):
            asked = true_answers(variant, read_committed=is_committed)
            rows = [(each["topic"], each["partition"], each["timestamp"], -1, level) for each in asked]
            answers = reader.list_offsets(rows)
            for true, row in zip(asked, answers, strict=True):
                found = row["offset"], row["offset_timestamp_ms"], row["leader_epoch"]
                if not true["in_archive"]:
                    assert row["error"] in ("LOCAL_REQUIRED", "OPEN_TRANSACTION"), true
                elif row["error"] == "OPEN_TRANSACTION":
                    assert is_committed
                    assert true["offset"] >= stable[true["topic"], true["partition"]]
                else:
                    assert found == expected_facts(true), (true, row)
                    assert row["error"] == "NONE"
            if not is_committed:
                assert sum(row["error"] == "NONE" for row in answers) == sum(each["in_archive"] for each in asked) > 300


def expected_facts(true: TrueAnswer) -> tuple[int | None, int | None, int | None]:
    return true["offset"], true["result_timestamp"], true["leader_epoch"]


@pytest.mark.parametrize("variant", TOGETHER)
def test_segments_and_answers_equal_those_of_the_broker(aiven: Warehouse, variant: str) -> None:
    require_true_segments(aiven, variant)
    require_true_answers(aiven, variant)


def test_only_unfinished_copies_are_discrepancies(aiven: Warehouse) -> None:
    require_sound_tables(aiven, {"copy_unfinished": 3})


def test_at_sidecar_depth_compressed_chunks_give_the_answers_of_the_broker(aiven_sidecar: Warehouse) -> None:
    """A build reads manifests and small files. A lookup reads the chunks in which its interval lies."""
    warehouse = aiven_sidecar
    require_true_segments(warehouse, SIDECAR)
    assert {row["served_index_depth"] for row in segments_of(warehouse).values()} == {"sidecar"}
    store, batches = counted_reads(SIDECAR)
    require_true_answers(warehouse, SIDECAR, LookupOptions(batches=batches))
    require_sound_tables(warehouse, {})
    queries = [each for each in true_answers(SIDECAR) if each["in_archive"]][::37]
    with OffsetReader(warehouse.uri, LookupOptions(batches=batches)) as reader:
        for query in queries:
            reads = reads_of_lookup(reader, store, query)
            assert [each.name.rpartition(".")[2] for each in reads] == ["rsm-manifest", "log"]


def require_sound_tables(warehouse: Warehouse, discrepancies: dict[str, int]) -> None:
    """Check quarantine and discrepancies. A stored size that differs from the announced one is no discrepancy: chunks
    are compressed or encrypted. tests/spark/upkeep/test_validate.py checks the expectations."""
    assert len(rows_in(warehouse, QUARANTINE)) == 0
    assert Counter(row["kind"] for row in rows_in(warehouse, DISCREPANCIES)) == discrepancies


def counted_reads(variant: str) -> tuple[MemoryStore, BatchReader]:
    """Return the archive of a variant in a store that counts, and what reads there."""
    root = archive_of(variant)
    store = MemoryStore({str(path.relative_to(root)): path.read_bytes() for path in root.glob("*/*/*")})
    return store, BatchReader(open_layout=lambda: AivenLayout(store=store), limits=LIMITS)


def reads_of_lookup(reader: OffsetReader, store: MemoryStore, query: TrueAnswer) -> list[ReadRange]:
    """Check the answer, and return what was read for it."""
    store.reads.clear()
    found = reader.offset_for_timestamp(query["topic"], query["partition"], query["timestamp"])
    assert found is not None
    assert (found.offset, found.timestamp_ms, found.leader_epoch) == expected_facts(query)
    return store.reads


def test_at_batch_depth_a_lookup_decrypts_the_chunks_of_one_batch(
    spark: SparkSession, aiven_shallow: Warehouse
) -> None:
    warehouse = aiven_shallow
    require_true_segments(warehouse, SHALLOW)
    open_layout = partial(open_archive, str(archive_of(SHALLOW)), "aiven")
    with keys_named(spark, keys_setting(SHALLOW)):
        options = LookupOptions(batches=BatchReader(open_layout=open_layout, limits=LIMITS))
        require_true_answers(warehouse, SHALLOW, options)
        store, counted = counted_reads(SHALLOW)
        queries = [each for each in true_answers(SHALLOW) if each["in_archive"]][::37]
        with OffsetReader(warehouse.uri, LookupOptions(batches=counted)) as reader:
            for query in queries:
                manifest, log = reads_of_lookup(reader, store, query)
                assert manifest.name.endswith(".rsm-manifest")
                # A batch of at most 16 KiB lies in two chunks at most.
                assert log.name.endswith(".log")
                assert log.position % 65564 == 0
                assert log.length <= 2 * 65564
    with keys_named(spark, ""), OffsetReader(warehouse.uri, options) as without_keys:
        query = queries[0]
        (answer,) = without_keys.list_offsets([(query["topic"], query["partition"], query["timestamp"])])
        assert answer["error"] == "CORRUPT_MESSAGE"


def test_segments_without_a_key_are_quarantined_and_indexed_when_the_key_is_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    variant, first_key = "zstd-encrypted", str(key_files("zstd-encrypted")["key1"])
    location, rlmm = tmp_path / "warehouse", AIVEN_SAMPLE / variant / "rlmm"
    with keys_named(spark, ""):
        warehouse = run_pipeline(spark, open_variant(variant), location, metadata=rlmm)
    rows = rows_in(warehouse, QUARANTINE)
    assert {(row["reason"], row["expected"]) for row in rows} == {
        ("decryption_key_missing", "key1"),
        ("decryption_key_missing", "key2"),
    }
    assert all(row["object_name"].endswith(".rsm-manifest") for row in rows)
    assert (len(rows), set(segments_of(warehouse))) == (23, set(true_segments(variant)))
    assert advice(warehouse) == {
        "name the file of this key in COLDLOG_DECRYPTION_KEYS; the next run reads the segment again"
    }

    # A second key that is no key of this archive: its segments say so, the others are indexed without being asked for.
    with keys_named(spark, f"key1={first_key},key2={first_key}"):
        summary = build(warehouse, variant)
        assert (summary.indexed_count, summary.reasons) == (14, {"decryption_failed": 9})
        assert build(warehouse, variant).quarantined_count == 0, "a wrong key is not tried again and again"
    rows = rows_in(warehouse, QUARANTINE)
    assert {(row["reason"], row["attempt_count"]) for row in rows} == {("decryption_failed", 2)}
    assert advice(warehouse) == {
        "name the right key, or restore the object; then run with build.retry_quarantined=true"
    }

    with keys_named(spark, keys_setting(variant)):
        assert build(warehouse, variant, retry_quarantined=True).indexed_count == 9
        scan_segments(warehouse, open_variant(variant))
        version = len(rows_in(warehouse, SEGMENTS)), len(os.listdir(location / "segments" / "_delta_log"))
        scan_segments(warehouse, open_variant(variant))
        assert version == (23, len(os.listdir(location / "segments" / "_delta_log"))), "a second scan changes nothing"
        materialize_metadata(warehouse)
    assert len(rows_in(warehouse, QUARANTINE)) == 0
    require_true_segments(warehouse, variant)
    require_true_answers(warehouse, variant)
    require_no_secret(location, variant)


def build(warehouse: Warehouse, variant: str, *, retry_quarantined: bool = False):  # type: ignore[no-untyped-def]
    settings = build_settings(decryption_key_ids=list_key_ids(), retry_quarantined=retry_quarantined)
    return build_indexes(warehouse, open_variant(variant), settings)


def advice(warehouse: Warehouse) -> set[str]:
    """The advice in `archive_problems`."""
    return {row["advice"] for row in problems_of(warehouse).where("severity = 'error'").collect()}


def require_no_secret(location: Path, variant: str) -> None:
    """Check that no file of the warehouse has a key or a line of a key file."""
    lines = {line for path in key_files(variant).values() for line in path.read_bytes().split() if len(line) == 64}
    assert len(lines) > 50
    for path in location.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert b"PRIVATE KEY" not in content
        assert not any(line in content for line in lines)


@pytest.mark.parametrize("variant", TOGETHER)
def test_answers_from_a_listing_equal_those_of_the_broker(listed: Warehouse, variant: str) -> None:
    require_true_segments(listed, variant)
    require_true_answers(listed, variant)


def test_a_listing_shows_everything_except_which_of_two_complete_copies_was_finished(listed: Warehouse) -> None:
    rows = segments_of(listed)
    plain_topics = {each["topic"] for each in true_segments("plain").values()}
    plain = {key for key, row in rows.items() if row["topic"] in plain_topics}
    assert plain == set(finished_segments("plain"))
    # One range was copied four times: finished, whole, with half a manifest, without a manifest.
    copies = {key: row for key, row in rows.items() if (row["topic"], row["start_offset"]) == ("flaky", 1276)}
    assert {
        row["index_status"]: row["segment_id"] for key, row in copies.items() if row["index_status"] != "indexed"
    } == {
        "quarantined": "4GxIC0z6RzCqAok96EEb1g",
        "incomplete": "tU4Hf9TSTDmXBpj6pPcKDg",
    }
    whole = sorted(key for key, row in copies.items() if row["index_status"] == "indexed")
    assert whole == ["0G_9JjxQRZuP_-No7ZpGfA", "MDWAtAmyR0afIYBSs-Pjpg"]
    # Same epoch, same length: the greater id answers.
    assert [copies[key]["not_served_reason"] for key in whole] == ["duplicate", None]
    (bad,) = rows_in(listed, QUARANTINE)
    assert (bad["segment_id"], bad["reason"], bad["position"]) == ("4GxIC0z6RzCqAok96EEb1g", "manifest_invalid", 352)
    assert bad["object_name"].endswith("4GxIC0z6RzCqAok96EEb1g.rsm-manifest")
    assert copies["tU4Hf9TSTDmXBpj6pPcKDg"]["missing_kinds"] == ["manifest"]
