"""scale: how do the steps that look at every segment grow with the number of segments, without an archive?

Rows of `segments` and `partition_metadata` are generated (`generated_tables`), a hundred segments in each partition,
one record in each. Measured are what a run does with them when nothing has changed (the survey of a build, the serving
plan, materialize), the size of a row, and lookups, one by one and a million at once, with their memory. Then ten new
segments are announced in a warehouse of so many (`grown_archive`), and run_pipeline runs. docs/scale.md computes larger
archives from such figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.scale_lookups import lookup_figures
from benchmarks.shared.generated_tables import TablesShape, get_tables
from benchmarks.shared.grown_archive import grown_place
from benchmarks.shared.measuring import Figure
from benchmarks.shared.sizes import Sizes
from benchmarks.shared.spark_job import make_job
from benchmarks.small_runs import figures_of

from coldlog.indexing.builds.build_work import survey_builds
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.indexing.publish.serving_plan import ServingPlan
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.table_files import open_table
from coldlog.tables.delta.warehouse import Warehouse

_SEGMENTS_A_PARTITION = 100
_MOST_JOINED = 1_000_000
"""More segments are not joined: it would take an hour."""


def measure_scale(sizes: Sizes) -> Iterator[Figure]:
    """A tenth of the segments first, then all: what is linear takes ten times as long."""
    shapes = list[TablesShape]()
    session = make_job(["warehouse.uri=spark-warehouse"])[0].spark
    try:
        for count in (sizes.scale_segment_count // 10, sizes.scale_segment_count):
            partitions = max(1, count // _SEGMENTS_A_PARTITION)
            shape = TablesShape(partition_count=partitions, segments=_SEGMENTS_A_PARTITION, batches=1, stairs=1)
            warehouse = get_tables(session, shape)
            if count <= _MOST_JOINED:
                yield from _figures(warehouse, shape)
            shapes.append(shape)
    finally:
        session.stop()
    for shape in shapes:
        yield from lookup_figures(shape)
    for count in (sizes.scale_segment_count // 10, sizes.scale_segment_count):
        place = grown_place(count)
        try:
            yield from figures_of(place, sizes.turns)
        finally:
            place.bring_back()


def _figures(warehouse: Warehouse, shape: TablesShape) -> Iterator[Figure]:
    count = shape.partition_count * shape.segments
    materialize_metadata(warehouse)  # what the generated rows leave open
    steps: dict[str, Callable[[], object]] = {
        "survey of a build": lambda: survey_builds(warehouse),
        "serving plan": lambda: _plan(warehouse),
        "materialize, nothing changed": lambda: materialize_metadata(warehouse),
    }
    for name, step in steps.items():
        started = time.perf_counter()
        step()
        seconds = time.perf_counter() - started
        yield Figure(
            benchmark="scale",
            what=name,
            on=f"{count:,} segments",
            value=seconds,
            unit="s",
            against="us a segment",
            ratio=seconds / count * 1e6,
        )
    size_bytes = sum(
        Path(file).stat().st_size for file in open_table(warehouse.location(SEGMENTS), SEGMENTS).file_uris()
    )
    yield Figure(
        benchmark="scale", what="row of segments", on=f"{count:,} segments", value=size_bytes / count, unit="bytes"
    )


def _plan(warehouse: Warehouse) -> object:
    with ServingPlan(warehouse) as plan:
        return plan.totals
