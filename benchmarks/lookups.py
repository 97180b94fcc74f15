"""lookups: how long do ten thousand questions take on ten million stairs?

Every record of the archive is a stair: its timestamp is some milliseconds later than the one before. The right answer
is known, and each one is compared. Warm: the tables were asked once before.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator

from benchmarks.shared.generated_logs import (
    FIRST_TIMESTAMP_MS,
    get_archive,
    stair_offset_at_or_after,
    stair_timestamp_ms,
    topic_of,
)
from benchmarks.shared.measuring import Figure
from benchmarks.shared.sizes import Sizes
from benchmarks.shared.spark_job import make_job, run_in_session, warehouse_assignments

from builders.payload_codecs import Codec
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.model.states import IndexDepth
from coldlog.tables.delta.warehouse import Warehouse

_REQUEST_COUNT = 10_000
_GOAL_SECONDS = 3.0


def measure_lookups(sizes: Sizes) -> Iterator[Figure]:
    """Builds the tables, asks, compares, and times the asking."""
    archive = get_archive(sizes.stairs)
    session = make_job(warehouse_assignments(archive, archive.directory, IndexDepth.RECORD))[0].spark
    try:
        built = run_in_session(session, archive, IndexDepth.RECORD)
        yield Figure(
            benchmark="lookups",
            what="tables built",
            on=f"{built.stair_count:,} stairs",
            value=built.seconds,
            unit="s",
            against="bytes of index tables a stair",
            ratio=built.index_table_bytes / built.stair_count,
        )
        warehouse = Warehouse(spark=session, uri=str(built.warehouse))
        asked = _questions(sizes.stairs.partition_count, built.stair_count)
        for is_broker_compatible in (False, True):
            seconds = [
                _ask(warehouse, asked, is_broker_compatible=is_broker_compatible) for _ in range(sizes.turns + 1)
            ]
            yield _figure(statistics.median(seconds[1:]), built.stair_count, is_broker_compatible=is_broker_compatible)
            yield _figure(seconds[0], built.stair_count, is_broker_compatible=is_broker_compatible, turn=", first time")
    finally:
        session.stop()


def _questions(partition_count: int, stair_count: int) -> list[tuple[str, int, int]]:
    randomness = random.Random(23)
    asked_span_ms = stair_timestamp_ms(stair_count // partition_count - 1) - FIRST_TIMESTAMP_MS
    topic = topic_of(Codec.NONE)
    return [
        (topic, randomness.randrange(partition_count), FIRST_TIMESTAMP_MS + randomness.randrange(asked_span_ms))
        for _ in range(_REQUEST_COUNT)
    ]


def _ask(warehouse: Warehouse, asked: list[tuple[str, int, int]], *, is_broker_compatible: bool) -> float:
    requests = requests_from_rows(asked)
    started = time.perf_counter()
    answers = find_offsets_for_timestamps(warehouse, requests, LookupOptions(broker_compatible=is_broker_compatible))
    offsets = answers.column("offset").to_pylist()
    seconds = time.perf_counter() - started
    expected = [stair_offset_at_or_after(timestamp_ms) for _, _, timestamp_ms in asked]
    wrong_count = sum(offset != right for offset, right in zip(offsets, expected, strict=True))
    if wrong_count:
        raise RuntimeError(f"{wrong_count} of {len(asked)} answers are wrong: the time means nothing")
    return seconds


def _figure(seconds: float, stair_count: int, *, is_broker_compatible: bool, turn: str = "") -> Figure:
    rule = "as a broker" if is_broker_compatible else "exact"
    return Figure(
        benchmark="lookups",
        what=f"{_REQUEST_COUNT:,} requests, {rule}{turn}",
        on=f"{stair_count:,} stairs",
        value=seconds,
        unit="s",
        against="" if turn else f"{_GOAL_SECONDS} s",
        ratio=None if turn else seconds / _GOAL_SECONDS,
        target="" if turn else "< 1",
        is_met=None if turn else seconds < _GOAL_SECONDS,
    )
