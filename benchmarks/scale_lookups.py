"""scale_lookups: what do lookups in the tables of many segments take, in time and memory?

    python -m benchmarks.scale_lookups reader|bulk PARTITIONS SEGMENTS QUESTIONS

Each in a process of its own, so that its memory can be told. `reader`: one question after another by OffsetReader.
`bulk`: all at once by Spark tasks, after a turn that warms. All answers are checked. Prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bulk_lookups import compare, questions, seconds_of
from benchmarks.shared.generated_tables import TablesShape, location_of, time_single_lookups, topic_and_partition
from benchmarks.shared.measuring import MEGABYTE, Figure, PeakMemory
from benchmarks.shared.spark_job import make_job

from coldlog.tables.delta.warehouse import Warehouse

_TURNS = 3
_SINGLE, _MANY = 5_000, 1_000_000
_DRIVER, _WORKER, _JVM = "memory of the driver's Python", "memory of the largest task", "memory of the JVM"
_MEMORY = _DRIVER, _WORKER, _JVM


def lookup_figures(shape: TablesShape) -> Iterator[Figure]:
    """Time lookups in generated tables, which must be there."""
    on = f"{shape.partition_count * shape.segments:,} segments"
    for mode, count, unit in (("reader", _SINGLE, "ms"), ("bulk", _MANY, "s")):
        numbers = map(str, (shape.partition_count, shape.segments, count))
        command = [sys.executable, "-m", "benchmarks.scale_lookups", mode, *numbers]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
        for what, value in json.loads(ended.stdout).items():
            name, shown, of = f"{count:,} lookups by {mode}, {what}", value, unit
            if what in _MEMORY:
                shown, of = value / MEGABYTE, "MB"
            yield Figure(benchmark="scale", what=name, on=on, value=shown, unit=of)


def main(mode: str, partitions: int, segments: int, count: int) -> int:
    """Ask so many questions, and print the figures."""
    shape = TablesShape(partition_count=partitions, segments=segments, batches=1, stairs=1)
    location = location_of(shape)
    with PeakMemory() as peak:
        figures = time_single_lookups(location, shape, count) if mode == "reader" else _bulk(location, shape, count)
    figures[_DRIVER] = peak.python_driver_bytes
    if mode == "bulk":
        figures |= {_WORKER: peak.largest_worker_bytes, _JVM: peak.jvm_bytes}
    print(json.dumps(figures))
    return 0


def _bulk(location: Path, shape: TablesShape, count: int) -> dict[str, float]:
    spark = make_job([f"warehouse.uri={location}"])[0].spark
    try:
        asked = questions(count, topic_and_partition, shape.partition_count, shape.records)
        seconds, answers = seconds_of(Warehouse(spark=spark, uri=str(location)), asked, _TURNS)
        compare(asked, answers, shape)
        return {"median": seconds}
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
