"""small_runs: what does a run of run_pipeline cost that finds little or nothing new, beside what it cannot go below?

Three archives: the sample, one of many segments of a few hundred bytes, and the same with a metadata topic that
announces every segment. Each is indexed once without some segments.
Then four things take turns, each in a new process: a run that finds nothing new, a run that finds the segments that
were left out, a Spark session that counts one table, and Python that counts it with deltalake. Before each of them the
warehouse and the archive are put back.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.shared.generated_logs import CACHE, FIRST_TIMESTAMP_MS
from benchmarks.shared.measuring import Figure
from benchmarks.shared.sizes import Sizes

from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition, WrittenSegment, write_archive
from builders.metadata_topic import finished, values_of, write_topic
from builders.segment_builder import Batch, Record, Segment
from coldlog.tables.definitions.segments import SEGMENTS

_ROOT = Path(__file__).resolve().parent.parent
_SAMPLE = _ROOT / "tests" / "golden" / "kafka-sample" / "archive"
_PARTITIONS = 100
_NEW = 10
"""Partitions with a new segment."""
_RECORDS_A_SEGMENT = 4
_SPARK = """
import sys
from coldlog.launch.session import spark_session
from coldlog.runtime.settings_sources import load_settings
spark = spark_session(load_settings("local", [f"warehouse.uri={sys.argv[1]}"]), has_rows_in_spark=False)
spark.read.format("delta").load(f"{sys.argv[1]}/{sys.argv[2]}").count()
spark.stop()
"""
_DELTALAKE = """
import sys
from deltalake import DeltaTable
DeltaTable(f"{sys.argv[1]}/{sys.argv[2]}").to_pyarrow_dataset().count_rows()
"""
_UNCHANGED, _CHANGED, _SPARK_FLOOR, _PYTHON_FLOOR = "unchanged", "new segments", "Spark counts", "deltalake counts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An archive, the segments that are left out at first (stems of their files), and a warehouse with its copy.

    `topics` has the metadata topic `before` these segments and `after` them; None: there is no topic.
    """

    name: str
    archive: Path
    held_back: tuple[Path, ...]
    segment_count: int
    topics: Path | None = None

    @property
    def warehouse(self) -> Path:
        return CACHE / "warehouses" / f"small-runs-{self.name}"

    @property
    def pristine(self) -> Path:
        return self.warehouse.with_name(self.warehouse.name + "-before")

    @property
    def aside(self) -> Path:
        return self.archive.with_name(self.archive.name + "-aside")

    def index_without_held_back(self) -> None:
        """Keep the warehouse of a run without the held back segments."""
        self.hold_back()
        subprocess.run(self.run_command(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.pristine, ignore_errors=True)
        shutil.copytree(self.warehouse, self.pristine)

    def restore(self, *, is_complete: bool) -> None:
        """Put the warehouse back, and the archive with or without the held back segments."""
        shutil.rmtree(self.warehouse)
        shutil.copytree(self.pristine, self.warehouse)
        self.bring_back()
        if not is_complete:
            self.hold_back()

    def hold_back(self) -> None:
        for stem in self.held_back:
            _move(stem, self.aside / stem.parent.name)
        self._tell("before")

    def bring_back(self) -> None:
        for stem in self.held_back:
            _move(self.aside / stem.parent.name / stem.name, stem.parent)
        self._tell("after")

    def _tell(self, name: str) -> None:
        """Put one of the topics where runs read it, with the times of its files."""
        if self.topics is not None:
            shutil.rmtree(self.topics / "now", ignore_errors=True)
            shutil.copytree(self.topics / name, self.topics / "now")

    @property
    def settings(self) -> list[str]:
        settings = [f"archive.uri={self.archive}", f"warehouse.uri={self.warehouse}", "index.depth=batch"]
        settings.append("scan.full_listing_hours=1e7")  # no directory is due while it is measured
        return settings + ([] if self.topics is None else [f"metadata.uri={self.topics / 'now'}"])

    def run_command(self) -> list[str]:
        assignments = [part for each in self.settings for part in ("--set", each)]
        return [str(_ROOT / "spark-submit.sh"), "run_pipeline", *assignments]


def _move(stem: Path, folder: Path) -> None:
    """Move the files of a segment; nothing if they are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in stem.parent.glob(f"{stem.name}.*"):
        file.rename(folder / file.name)


def measure_small_runs(sizes: Sizes) -> Iterator[Figure]:
    """The sample with one new segment, then many segments with ten new ones, without and with their events."""
    count = sizes.small_segment_count
    for make in (_sample_place, partial(_many_place, count), partial(_many_place, count, is_announced=True)):
        place = make()
        place.index_without_held_back()
        try:
            yield from figures_of(place, sizes.turns)
        finally:
            place.bring_back()


def figures_of(place: Place, turns: int) -> Iterator[Figure]:
    """Time a run that finds nothing new and one that finds the segments that were left out, in turns."""
    walls, processors = _seconds_in_turns(place, turns)
    held_back = len(place.held_back)
    for name, what in ((_UNCHANGED, "nothing new"), (_CHANGED, f"{held_back} new")):
        for seconds, unit in ((walls, "s"), (processors, "cpu s")):
            floor = _PYTHON_FLOOR if name == _UNCHANGED else _SPARK_FLOOR
            yield Figure(
                benchmark="small-runs",
                what=what,
                on=f"{place.segment_count:,}" + ("" if place.topics is None else ", announced"),
                value=seconds[name],
                unit=unit,
                against=", ".join(f"{each} {seconds[each]:.1f}" for each in (_SPARK_FLOOR, _PYTHON_FLOOR)),
                ratio=seconds[name] / seconds[floor],
            )


def _seconds_in_turns(place: Place, turns: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the medians of each process: seconds of the clock, and of the processors.

    No turn is left out: each process is a new one, and the run that indexed has filled the caches of the machine.
    """
    counted = [str(place.warehouse), SEGMENTS.name]
    commands = {
        _UNCHANGED: place.run_command(),
        _CHANGED: place.run_command(),
        _SPARK_FLOOR: [sys.executable, "-c", _SPARK, *counted],
        _PYTHON_FLOOR: [sys.executable, "-c", _DELTALAKE, *counted],
    }
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(turns):
        for name, command in commands.items():
            place.restore(is_complete=name == _CHANGED)
            measured[name].append(_timed(command))
    return _medians(measured, "wall_s"), _medians(measured, "processor_s")


def _medians(measured: dict[str, list[dict[str, float]]], key: str) -> dict[str, float]:
    return {name: statistics.median(each[key] for each in turns) for name, turns in measured.items()}


def _timed(command: Sequence[str]) -> dict[str, float]:
    program = [sys.executable, str(Path(__file__).parent / "shared" / "timed_process.py"), *command]
    ended = subprocess.run(program, check=True, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    seconds: dict[str, float] = json.loads(ended.stdout)
    return seconds


def _sample_place() -> Place:
    """A copy of the sample; the last segment of payments-1 is new."""
    archive = CACHE / "small-runs-sample"
    if not archive.exists():
        shutil.copytree(_SAMPLE, archive)
    return _place("sample", archive, ("payments-1-*",))


def _many_place(count: int, *, is_announced: bool = False) -> Place:
    """So many segments in a hundred partitions; the last segments of ten partitions are new."""
    name = f"{count}-announced" if is_announced else str(count)
    archive = CACHE / f"small-runs-{name}"
    topics = archive.with_name(archive.name + "-topics") if is_announced else None
    if not archive.exists():
        unfinished = archive.with_name(archive.name + ".partial")
        shutil.rmtree(unfinished, ignore_errors=True)
        written = [small_partition(unfinished, partition, count // _PARTITIONS) for partition in range(_PARTITIONS)]
        if topics is not None:
            _write_topics(topics, written)
        unfinished.rename(archive)
    return _place(name, archive, tuple(f"small-{partition}-*" for partition in range(_NEW)), topics)


def small_partition(archive: Path, partition: int, count: int) -> list[WrittenSegment]:
    """Write a partition of so many segments of a few records."""
    segments = [_small_segment(number) for number in range(count)]
    return write_archive(archive, {TopicPartition(topic="small", partition=partition): segments})


def _write_topics(topics: Path, written: Sequence[Sequence[WrittenSegment]]) -> None:
    """Announce the last segments of the first partitions after all others."""
    new = [segments[-1] for segments in written[:_NEW]]
    known = [each for number, segments in enumerate(written) for each in segments[: -1 if number < _NEW else None]]
    values = values_of(finished(*known))
    write_topic(topics / "before", {0: values})
    write_topic(topics / "after", {0: [*values, *values_of(finished(*new))]})


def _place(name: str, archive: Path, patterns: tuple[str, ...], topics: Path | None = None) -> Place:
    root = archive / ARCHIVE_FOLDER
    folders = [folder for pattern in patterns for folder in root.glob(pattern)]
    place = Place(name=name, archive=archive, held_back=(), segment_count=0, topics=topics)
    for kept in place.aside.glob("*/*.log"):  # by a run that was killed
        _move(kept.with_suffix(""), root / kept.parent.name)
    return Place(
        name=name,
        archive=archive,
        held_back=tuple(max(folder.glob("*.log")).with_suffix("") for folder in folders),
        segment_count=sum(1 for _ in root.glob("*/*.log")),
        topics=topics,
    )


def _small_segment(number: int) -> Segment:
    first = number * _RECORDS_A_SEGMENT
    offsets = range(first, first + _RECORDS_A_SEGMENT)
    records = tuple(
        Record(timestamp_ms=FIRST_TIMESTAMP_MS + offset * 1_000, value=b"%d" % offset) for offset in offsets
    )
    return Segment(batches=(Batch(base_offset=first, records=records),))
