"""Test that a table store that hangs after some partitions loses no answer of those read before."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.lookups.list_offsets import LookupOptions, open_lookup
from coldlog.lookups.rows import questions_of, requests_from_rows
from coldlog.lookups.served_index import list_warehouse_files
from coldlog.lookups.timed_answers import answer_until
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp
from golden_warehouse import run_pipeline

FIRST_MS = 1_700_000_000_000
TIMEOUT_S = 10.0


def test_partitions_that_were_read_before_a_hang_are_answered_and_others_time_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive, warehouse = tmp_path / "archive", tmp_path / "warehouse"
    segment = Segment(batches=(Batch(base_offset=0, records=(Record(timestamp_ms=FIRST_MS),)),))
    places = {TopicPartition(topic="t", partition=each): [segment] for each in range(3)}
    write_archive(archive, dict(list(places.items())[:2]))
    run_pipeline(spark, archive, warehouse)
    before = set(warehouse.glob("*_index/*.parquet"))
    write_archive(archive, places)
    run_pipeline(spark, archive, warehouse)
    hung = set(warehouse.glob("*_index/*.parquet")) - before
    for file in hung:
        # Opening this FIFO blocks until another process writes to it.
        file.unlink()
        os.mkfifo(file)
    assert hung, "the last partition has files of its own"

    rows = [("t", each, FIRST_MS) for each in range(3)] + [("t", 2, SpecialTimestamp.EARLIEST_LOCAL.value)]
    options, files = LookupOptions(), list_warehouse_files(str(warehouse))
    requests = requests_from_rows(rows)
    asked = questions_of(requests, np.zeros(len(rows), dtype=np.bool_), options.isolation_level, options.timeout_ms)
    started = time.time()
    answers = answer_until(
        lambda: open_lookup(files, options)[1],
        asked.questions,
        np.array([started + 600, started + 600, started + TIMEOUT_S, started + TIMEOUT_S]),
        most_at_once=4,
    )
    assert time.time() - started < 60, "answered requests are not waited for"
    assert answers.errors.tolist() == [ErrorCode.NONE] * 2 + [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert answers.offsets.tolist() == [0, 0, -1, -1]
