"""replay: does a replay cost as much per record when it is ten times as long?

The job's own run, into a Delta table, of clicks in four partitions compressed with zstd, on two cores in a JVM of
4 GiB: what does not fit is spilled. The clicks of each partition come late now and then, so that partitions take turns.

It runs in a process of its own, because a process has one JVM, and another benchmark's may have another heap.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.shared.generated_logs import GeneratedArchive, LogShape, RecordKind, get_archive
from benchmarks.shared.measuring import Figure
from benchmarks.shared.sizes import Sizes
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from builders.payload_codecs import Codec
from coldlog.launch.session import spark_session
from coldlog.model.states import IndexDepth
from coldlog.records.source.options import read_options
from coldlog.replay.runs.replay import ReplayOptions, replay
from coldlog.replay.runs.replay_sinks import DeltaSink
from coldlog.replay.runs.replay_state import ReplayStates
from coldlog.runtime.settings_sources import load_settings
from coldlog.tiering.system_clock import SystemClock
from worlds.golden_warehouse import build_settings, run_pipeline

TARGET = 1.5
_HEAP_BYTES = 4 << 30
_BYTES_A_RECORD = 42
"""Of the log, as zstd leaves them."""


def measure_replay(sizes: Sizes) -> Iterator[Figure]:
    """Records a second of the longer replay, and its time per record beside that of one ten times shorter."""
    # The first replay warms up.
    asked = [sizes.replayed_count // 10, *sizes_of(sizes)]
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as own_process:
        (_, _), (short_count, short_s), (count, took_s) = own_process.submit(_replay_in_turn, asked).result()
    ratio = (took_s / count) / (short_s / short_count)
    yield Figure(
        benchmark="replay",
        what=f"replay of {count:,} records into Delta",
        on="zstd, 4 GiB",
        value=count / took_s / 1e6,
        unit="M/s",
        against=f"time per record at {short_count:,} records",
        ratio=ratio,
        target=f"<= {TARGET:g}",
        is_met=ratio <= TARGET,
    )


def _replay_in_turn(asked: list[int]) -> list[tuple[int, float]]:
    """Of about so many records: how many, and seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        assignments = ["spark.driver.memory=4g", "spark.master=local[2]", f"warehouse.uri={scratch}/session"]
        spark = spark_session(load_settings("local", assignments), "replay benchmark")
        try:
            spark.sparkContext.setLogLevel("ERROR")
            _require_heap(spark)
            return [_replay(spark, _archive(count), Path(scratch) / str(number)) for number, count in enumerate(asked)]
        finally:
            spark.stop()


def _require_heap(spark: SparkSession) -> None:
    """Some collectors keep back a part of what they were given."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    heap_bytes = int(jvm.java.lang.Runtime.getRuntime().maxMemory())
    assert 0.8 * _HEAP_BYTES < heap_bytes <= _HEAP_BYTES, f"the JVM has a heap of {heap_bytes:,} bytes"
    assert spark.sparkContext.defaultParallelism == 2, "cores"


def sizes_of(sizes: Sizes) -> tuple[int, int]:
    """Records of the shorter and the longer replay."""
    return sizes.replayed_count // 10, sizes.replayed_count


def _archive(record_count: int) -> GeneratedArchive:
    shape = LogShape(
        log_bytes=record_count * _BYTES_A_RECORD,
        codecs=(Codec.ZSTD,),
        segment_bytes=16 << 20,
        template_bytes=8 << 20,
        partition_count=4,
        records=RecordKind.CLICKS,
    )
    return get_archive(shape)


def _replay(spark: SparkSession, archive: GeneratedArchive, folder: Path) -> tuple[int, float]:
    """Records, and seconds."""
    warehouse = run_pipeline(spark, archive.directory, folder / "warehouse", settings=build_settings(IndexDepth.BATCH))
    told = {"warehouse.uri": warehouse.uri, "archive.uri": str(archive.directory), "subscribepattern": "."}
    sink = DeltaSink(spark=spark, uri=str(folder / "sink"))
    options = ReplayOptions(source=read_options(told), name="bench")
    started = time.perf_counter()
    summary = replay(spark, options, sink, ReplayStates.of_warehouse(warehouse.uri), SystemClock())
    took = time.perf_counter() - started
    written = DeltaTable(sink.uri).to_pyarrow_dataset().count_rows()
    assert summary.record_count == written
    shutil.rmtree(folder)
    return written, took
