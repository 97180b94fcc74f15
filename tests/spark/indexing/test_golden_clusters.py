"""Compare answers from the tables with the answers of real clusters of several versions about their archives.

Each archive is by three brokers whose leaders changed; tests/broker/cluster_play.py says what each topic shows.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from environment import REPOSITORY

from cluster_comparison import COMPARISONS, FINISHED, NEVER_ARCHIVED, Compared, refused_offsets, stable_offsets
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import rows_in
from contents.versions_table import versions_table
from servers.kafka_clusters import CLUSTER_NAMES, VERSIONS, Line, follower_entries, shape_of, true_lines

BEFORE_KAFKA_806 = {"3.6.2", "3.7.2", "3.8.1", "3.9.0", "4.0.0"}


@pytest.fixture(scope="module")
def comparisons(clusters: Warehouse) -> Mapping[str, Compared]:
    """Every comparison, made once."""
    return {capability: compare(clusters) for capability, compare in COMPARISONS.items()}


@pytest.mark.parametrize("capability", COMPARISONS)
def test_answers_equal_those_of_the_clusters(comparisons: Mapping[str, Compared], capability: str) -> None:
    compared = comparisons[capability]
    assert compared.wrong == []
    assert set(compared.asked) == set(CLUSTER_NAMES)


def test_no_segment_is_quarantined(clusters: Warehouse) -> None:
    assert rows_in(clusters, QUARANTINE) == []


def test_archives_of_some_versions_have_index_entries_of_whole_fetched_sets() -> None:
    """KAFKA-806: fixed in 3.9.1, 4.0.1 and 4.1.0."""
    assert {cluster for cluster in VERSIONS if follower_entries(cluster)} == BEFORE_KAFKA_806 & {*VERSIONS}


def test_segments_whose_records_an_unclean_election_lost_are_not_served(clusters: Warehouse) -> None:
    rows = [row for row in rows_in(clusters, SEGMENTS) if row["was_copied"] and row["is_within_lineage"] is False]
    assert {row["topic"] for row in rows} == {f"lost-{cluster}" for cluster in VERSIONS}
    served = [
        (row["topic"], row["served_from_offset"], row["served_to_offset"]) for row in rows if row["served_build_number"]
    ]
    assert served == [("lost-3.6.2", 104, 127)], "the part before the epochs part, which nobody archived again"


def test_only_offsets_that_kafka_3_6_never_archived_are_a_gap(clusters: Warehouse) -> None:
    rows = [row for row in rows_in(clusters, PARTITION_METADATA) if (row["gap_count"] or 0) > 0]
    assert {(row["topic"], row["partition"]): row["gap_count"] for row in rows} == dict.fromkeys(NEVER_ARCHIVED, 1)


def test_only_consumers_of_kafka_3_6_are_refused_archived_records() -> None:
    refused = {place: offsets for place, offsets in refused_offsets().items() if offsets}
    assert refused == {("killed-3.6.2", 0): list(range(272, 416))}


def test_archives_end_in_a_transaction_whose_marker_is_not_archived(clusters: Warehouse) -> None:
    stops = set(stable_offsets(clusters))
    assert {shape_of(topic) for topic, _ in stops} == {"transactions"}
    assert stops >= {(f"transactions-{cluster}", 1) for cluster in VERSIONS}


def test_events_of_an_upgraded_cluster_have_the_newer_field_only_in_part(clusters: Warehouse) -> None:
    """KIP-1058: brokers from 4.0 on announce that a transaction index is empty; earlier ones never do."""
    events = [row for row in rows_in(clusters, SEGMENT_EVENTS) if row["start_offset"] is not None]
    told = {str(row["topic"]).partition("-")[2] for row in events if row["txn_index_empty"] is not None}
    assert told == {cluster for cluster in CLUSTER_NAMES if cluster.rpartition("-")[2] >= "4"}
    assert {row["txn_index_empty"] for row in events if "-to-" in str(row["topic"])} == {None, True}


@pytest.mark.parametrize("cluster", VERSIONS)
def test_archives_contain_the_cases_that_they_were_made_for(cluster: str) -> None:
    by_shape: dict[str, list[Line]] = {}
    for segment in true_lines(cluster, "segments"):
        if segment["state"] == FINISHED:
            by_shape.setdefault(shape_of(segment["topic"]), []).append(segment)
    everything = {"none", "gzip", "snappy", "lz4", "zstd"}
    assert _named(by_shape["moved"], "codecs") == _named(by_shape["recompressed"], "codecs") == everything
    assert _named(by_shape["appended"], "timestamp_types") == {"CreateTime", "LogAppendTime"}
    assert any(segment["aborted"] for segment in by_shape["transactions"])
    assert all(
        len(_named(segments, "leader_epochs")) > 1 for shape, segments in by_shape.items() if shape != "backwards"
    )


def _named(segments: list[Line], field: str) -> set[str]:
    return {each for segment in segments for each in segment[field]}


def test_docs_have_the_numbers_of_comparisons(comparisons: Mapping[str, Compared]) -> None:
    table = versions_table(comparisons)
    is_there = table in (REPOSITORY / "docs" / "reference" / "versions.md").read_text(encoding="utf-8")
    assert is_there, f"docs/reference/versions.md needs this table:\n{table}"
