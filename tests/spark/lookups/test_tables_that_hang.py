"""Test that a table store that hangs after some partitions loses no answer of those read before."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np

from coldlog.lookups.list_offsets import LookupOptions, open_lookup
from coldlog.lookups.requests.rows import questions_of, requests_from_rows
from coldlog.lookups.served_index import list_warehouse_files
from coldlog.lookups.timed_answers import answer_until
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp
from coldlog.tables.delta.files.file_checksums import checksums_path
from worlds.staged_archive import FUTURE, SECOND

TIMEOUT_S = 10.0


def test_partitions_that_were_read_before_a_hang_are_answered_and_others_time_out(
    stages: list[Path], tmp_path: Path
) -> None:
    """Partitions of `future` have no segments in the files of the second stage, next-4 has none in others."""
    warehouse = tmp_path / "warehouse"
    shutil.copytree(stages[1] / "warehouse", warehouse)
    before = {file.name for file in (stages[0] / "warehouse").glob("*_index/*.parquet")}
    hung = [file for file in warehouse.glob("*_index/*.parquet") if file.name not in before]
    for file in hung:
        # Opening this FIFO blocks until another process writes to it.
        file.unlink()
        os.unlink(checksums_path(str(file)))
        os.mkfifo(file)
    assert hung, "the last partition has files of its own"

    (first_ms,) = SECOND["next", 4]
    rows = [("future", each, FUTURE["future", each][0]) for each in range(2)]
    rows += [("next", 4, first_ms), ("next", 4, SpecialTimestamp.EARLIEST_LOCAL.value)]
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
