"""Test that answers from generated archives, indexed by the whole pipeline, equal a scan over the written records."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.brute_force import FoundOffset, find_first_offset, find_first_offset_as_broker
from builders.segment_builder import Segment
from builders.strategies import log_start_offsets, partitions
from coldlog.archive.open_archive import open_archive
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.quarantine import QUARANTINE
from contents.table_contents import rows_in
from worlds.golden_warehouse import build_settings, run_pipeline

MAX_TIMESTAMP_MS = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A generated partition and its log start offset."""

    segments: list[Segment]
    log_start_offset: int

    @property
    def timestamps_to_ask(self) -> list[int]:
        known = {record.timestamp_ms for segment in self.segments for record in segment.placed_records}
        known |= {segment.metadata_max_timestamp_ms for segment in self.segments} | {0, MAX_TIMESTAMP_MS}
        near = {each + shift for each in known for shift in (-1, 0, 1)}
        return sorted(each for each in near if 0 <= each <= MAX_TIMESTAMP_MS)

    @property
    def starts_behind_a_segments_last_record(self) -> bool:
        """Then the broker uses the end offset in the metadata topic, which the archive does not have."""
        return any(each.batches[-1].last_offset < self.log_start_offset <= each.end_offset for each in self.segments)


@pytest.fixture(scope="module")
def drawn() -> list[Drawn]:
    """A hundred partitions that Hypothesis drew, collected so that one run of the pipeline indexes them all."""
    collected: list[Drawn] = []

    @settings(max_examples=100, derandomize=True, database=None, suppress_health_check=list(HealthCheck), deadline=None)
    @given(segments=partitions(), data=st.data())
    def collect(segments: list[Segment], data: st.DataObject) -> None:
        collected.append(Drawn(segments=segments, log_start_offset=data.draw(log_start_offsets(segments))))

    collect()
    return collected


@pytest.mark.parametrize("depth", list(IndexDepth))
def test_every_answer_equals_that_of_a_scan(
    spark: SparkSession, tmp_path: Path, drawn: list[Drawn], depth: IndexDepth
) -> None:
    archive = tmp_path / "archive"
    write_archive(archive, {TopicPartition(topic="drawn", partition=n): each.segments for n, each in enumerate(drawn)})
    log_starts = tmp_path / "log_starts.csv"
    with log_starts.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["topic", "partition", "log_start_offset"])
        writer.writerows(("drawn", number, each.log_start_offset) for number, each in enumerate(drawn))
    options = build_settings(depth)
    warehouse = run_pipeline(spark, archive, tmp_path / "w", log_start_offsets=log_starts, settings=options)
    assert len(rows_in(warehouse, QUARANTINE)) == 0

    asked = [("drawn", number, time) for number, each in enumerate(drawn) for time in each.timestamps_to_ask]
    open_layout = partial(open_archive, str(archive), "local_tiered_storage")
    batches = BatchReader(open_layout=open_layout, limits=options.options.limits)
    for is_broker, scan in ((False, find_first_offset), (True, find_first_offset_as_broker)):
        answers = find_offsets_for_timestamps(
            warehouse, requests_from_rows(asked), LookupOptions(broker_compatible=is_broker, batches=batches)
        ).to_pylist()
        for (_, number, time), answer in zip(asked, answers, strict=True):
            each = drawn[number]
            if is_broker and each.starts_behind_a_segments_last_record:
                continue
            expected = scan(each.segments, time, log_start_offset=each.log_start_offset)
            assert _facts(answer) == _expected(expected), (number, time, is_broker, each.log_start_offset)
    assert len(asked) > 1500


def _facts(answer: dict[str, object]) -> tuple[object, object, object]:
    return answer["offset"], answer["offset_timestamp_ms"], answer["leader_epoch"]


def _expected(found: FoundOffset | None) -> tuple[object, object, object]:
    if found is None:
        return None, None, None
    return found.offset, found.timestamp_ms, None if found.leader_epoch == -1 else found.leader_epoch
