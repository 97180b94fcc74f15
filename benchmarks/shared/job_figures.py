"""job_figures: how does the whole job stand beside kafka-dump-log, the goals for size, and its own cold start?

The job's own seconds and the tool's are of the same mix of codecs, the job on all cores of the machine as a user has
it. Both are taken warm: files in the page cache, the same job run once before in the session. What a job does besides
reading is the same for any size, so that a larger archive comes nearer to the speed of its tasks.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.dump_log import deep_iteration_seconds
from benchmarks.shared.generated_logs import GeneratedArchive, get_archive
from benchmarks.shared.measuring import MEGABYTE, Figure, PeakMemory
from benchmarks.shared.sizes import Sizes
from benchmarks.shared.spark_job import (
    STAGES,
    JobResult,
    drop_from_page_cache,
    make_job,
    run_in_new_process,
    run_in_session,
    warehouse_assignments,
)

from builders.payload_codecs import Codec
from coldlog.model.states import IndexDepth

_TOOL_TURNS = 2
_JOB_TURNS = 3


def measure_dump_log(sizes: Sizes) -> Iterator[Figure]:
    """The peer alone, on the first segment of each codec."""
    for shape in (sizes.mix, sizes.clicks):
        archive = get_archive(shape)
        for codec in shape.codecs:
            what = f"dump-log --deep-iteration, {shape.records}"
            yield _speed(what, codec.value, _dump_log_speed(archive, [codec]), benchmark="dumplog")


def measure_job(sizes: Sizes) -> Iterator[Figure]:
    """Scan, build and materialize at both depths: speed, size of the tables, memory; then a cold run."""
    mix, clicks, large = get_archive(sizes.mix), get_archive(sizes.clicks), get_archive(sizes.large)
    session = make_job(warehouse_assignments(mix, mix.directory, IndexDepth.RECORD))[0].spark
    try:
        for archive, depth in ((mix, IndexDepth.RECORD), (clicks, IndexDepth.RECORD), (large, IndexDepth.BATCH)):
            for other in {mix.directory, clicks.directory, large.directory} - {archive.directory}:
                drop_from_page_cache(other)
            run_in_session(session, archive, depth)
            with PeakMemory() as memory:
                results = [run_in_session(session, archive, depth) for _ in range(_JOB_TURNS)]
            speed = archive.log_bytes / statistics.median(each.seconds for each in results) / MEGABYTE
            yield from _speed_figures(depth, archive, speed)
            yield from _stage_figures(depth, archive, results)
            yield from _table_figures(depth, archive, results[-1])
            yield from _memory_figures(depth, memory)
    finally:
        session.stop()
    for archive, depth in ((large, IndexDepth.BATCH), (mix, IndexDepth.RECORD)):
        seconds = run_in_new_process(archive, depth)
        cold = archive.log_bytes / seconds / MEGABYTE
        yield _speed(f"{depth.value} depth, cold: {seconds:.0f} s", _size_of(archive), cold)


def _speed_figures(depth: IndexDepth, archive: GeneratedArchive, speed: float) -> Iterator[Figure]:
    what, on = f"{depth.value} depth, warm", _size_of(archive)
    if depth is IndexDepth.BATCH:
        yield _speed(what, on, speed, against="1,000 MB/s", peer=1_000.0, at_least=1.0)
    else:
        tool = _dump_log_speed(archive, archive.shape.codecs)
        yield _speed(what, on, speed, against=f"dump-log on the same mix, {tool:.0f} MB/s", peer=tool, at_least=10.0)


def _stage_figures(depth: IndexDepth, archive: GeneratedArchive, results: Sequence[JobResult]) -> Iterator[Figure]:
    for stage in STAGES:
        seconds = statistics.median(result.stage_seconds[stage] for result in results)
        what = f"{depth.value} depth, warm, stage {stage}"
        yield Figure(benchmark="job", what=what, on=_size_of(archive), value=seconds, unit="s")


def _table_figures(depth: IndexDepth, archive: GeneratedArchive, result: JobResult) -> Iterator[Figure]:
    share, goal = 100 * result.index_table_bytes / archive.log_bytes, 0.05 if depth is IndexDepth.BATCH else 0.2
    yield Figure(
        benchmark="job",
        what=f"{depth.value} depth, index tables",
        on=f"{result.batch_count:,} batches, {result.stair_count:,} stairs",
        value=result.index_table_bytes / MEGABYTE,
        unit="MB",
        against="% of the log bytes",
        ratio=share,
        target=f"<= {goal}",
        is_met=share <= goal,
    )


def _memory_figures(depth: IndexDepth, memory: PeakMemory) -> Iterator[Figure]:
    peaks = {
        "JVM (driver and executor)": memory.jvm_bytes,
        "Python driver": memory.python_driver_bytes,
        "Python workers": memory.python_workers_bytes,
        "largest Python worker": memory.largest_worker_bytes,
    }
    for role, size_bytes in peaks.items():
        megabytes = size_bytes / MEGABYTE
        yield Figure(benchmark="job", what=f"{depth.value} depth, peak memory", on=role, value=megabytes, unit="MB")


def _dump_log_speed(mix: GeneratedArchive, codecs: Sequence[Codec]) -> float:
    logs: list[Path] = [mix.list_logs(codec)[0] for codec in codecs]
    log_bytes = sum(log.stat().st_size for log in logs)
    return log_bytes / deep_iteration_seconds(logs, _TOOL_TURNS) / MEGABYTE


def _speed(
    what: str,
    on: str,
    speed: float,
    *,
    benchmark: str = "job",
    against: str = "",
    peer: float | None = None,
    at_least: float | None = None,
) -> Figure:
    ratio = None if peer is None else speed / peer
    return Figure(
        benchmark=benchmark,
        what=what,
        on=on,
        value=speed,
        unit="MB/s",
        against=against,
        ratio=ratio,
        target="" if at_least is None else f">= {at_least}",
        is_met=None if at_least is None or ratio is None else ratio >= at_least,
    )


def _size_of(archive: GeneratedArchive) -> str:
    return f"{archive.log_bytes / 1_000 / MEGABYTE:.1f} GB {archive.shape.records}"
