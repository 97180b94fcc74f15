"""hourly: does a run cost the same after a thousand of them?

    python -m benchmarks.hourly DAY

Ten partitions have a segment for each hour, of which the last 72 are in the archive. Every hour a segment of each is
uploaded, the oldest one is deleted, and both are announced in the metadata topic; then run_pipeline runs, and at the
end of the day maintain_tables. Each day is a process of its own, whose clock is a day later than that of the one
before: libfaketime must be installed. After each run, its files get times of that clock. At the end the second day and
the last are run again in turns, from copies of what was there before them: a machine whose speed changes in the course
of a thousand runs is not in their ratio. Shown are these, and what lies in the warehouse.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TypedDict
from unittest.mock import patch

from benchmarks.shared.generated_logs import CACHE
from benchmarks.shared.measuring import Figure
from benchmarks.shared.sizes import Sizes
from benchmarks.small_runs import small_partition
from jobs import maintain_tables, run_pipeline

from builders.archive_writer import ARCHIVE_FOLDER, WrittenSegment
from builders.metadata_topic import DELETED, DELETING, became, finished, values_of
from builders.segment_builder import Batch, Record, build_segment
from coldlog.formats.kafka.remote_log.remote_log_events import Event
from coldlog.upkeep import maintain
from coldlog.upkeep.unneeded_files import remove_old_entries

_ROOT = Path(__file__).resolve().parent.parent
_PARTITIONS, _KEPT_HOURS, _DAY = 10, 72, 24
_SUFFIXES = ".log", ".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint"
_FAKE_CLOCK = next(Path("/usr").glob("lib*/**/faketime/libfaketime.so.1"), None)
_TURNS = 3
_PLACE, _KEPT = CACHE / "hourly", CACHE / "hourly-kept"
_ARCHIVE, _ASIDE, _TOPIC, _WAREHOUSE = (_PLACE / name for name in ("archive", "aside", "topic", "warehouse"))
_LOG = _TOPIC / "__remote_log_metadata-0" / f"{0:020d}.log"
_HOURS = _PLACE / "hours.pickle"


class _Measured(TypedDict):
    """What a day took: processor seconds of each run, seconds of the maintenance; and what was there before it."""

    runs: list[float]
    maintain_tables: float
    contents: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hour:
    """What happens before a run: files that are uploaded (from, to) or deleted, and bytes that the topic gets."""

    uploads: list[tuple[Path, Path]]
    deletions: list[Path]
    topic: bytes

    def happen(self) -> None:
        for source, target in self.uploads:
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
        for file in self.deletions:
            file.unlink()
        _LOG.parent.mkdir(parents=True, exist_ok=True)
        with _LOG.open("ab") as log:
            log.write(self.topic)


def measure_hourly(sizes: Sizes) -> Iterator[Figure]:
    """Run so many hours, after three days that are indexed at once."""
    if _FAKE_CLOCK is None:
        raise RuntimeError("libfaketime is not installed (Debian's package faketime)")
    for each in (_PLACE, _KEPT):
        shutil.rmtree(each, ignore_errors=True)
    days = max(3, sizes.hourly_runs // _DAY)
    _HOURS.parent.mkdir(parents=True)
    _HOURS.write_bytes(pickle.dumps(list(_hours(days * _DAY))))
    measured = list[_Measured]()
    for day in range(days + 1):
        if day in {2, days}:
            shutil.copytree(_PLACE, _KEPT / str(day))
        measured.append(_day(day))
    turns = [(_day_again(2), _day_again(days)) for _ in range(_TURNS)]
    yield from _figures(measured[1:], turns)
    shutil.rmtree(_KEPT)


def _day_again(day: int) -> float:
    """Processor seconds of a run of that day: the median, from the copy that was made before it."""
    shutil.rmtree(_PLACE)
    shutil.copytree(_KEPT / str(day), _PLACE)
    return statistics.median(_day(day)["runs"])


def _hours(count: int) -> Iterator[_Hour]:
    """The first has what is indexed at once."""
    written = [small_partition(_ASIDE, number, _KEPT_HOURS + count) for number in range(_PARTITIONS)]
    offset, began_ms = 0, time.time_ns() // 1_000_000
    for hour in range(count + 1):
        first = 0 if hour == 0 else _KEPT_HOURS + hour - 1
        new = [each for segments in written for each in segments[first : _KEPT_HOURS + hour]]
        old = [segments[hour - 1] for segments in written if hour]
        events = [*finished(*new), *(event for each in old for event in became(each, DELETING, DELETED))]
        batches = [
            Batch(base_offset=offset + number, records=(Record(timestamp_ms=1_000, value=value),))
            for number, value in enumerate(values_of([_at(event, began_ms + hour * 3_600_000) for event in events]))
        ]
        offset += len(batches)
        yield _Hour(
            uploads=[pair for each in new for pair in _files_of(each)],
            deletions=[there for each in old for _, there in _files_of(each)],
            topic=build_segment(batches),
        )


def _at(event: Event, moment_ms: int) -> Event:
    """The event at that time of the days' clocks: maintain_tables forgets by it."""
    return replace(event, event_timestamp_ms=moment_ms)


def _files_of(segment: WrittenSegment) -> list[tuple[Path, Path]]:
    folder = _ARCHIVE / ARCHIVE_FOLDER / segment.stem.parent.name
    names = [segment.stem.name + suffix for suffix in _SUFFIXES]
    return [(segment.stem.parent / name, folder / name) for name in names]


def _day(day: int) -> _Measured:
    """Run a day in a process of its own. Day 0 is one run."""
    clock = {"LD_PRELOAD": str(_FAKE_CLOCK), "FAKETIME": f"+{day}d", "NO_FAKE_STAT": "1"}
    environment = {**os.environ, **clock, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "benchmarks.hourly", str(day)]
    ended = subprocess.run(command, check=True, cwd=_ROOT, env=environment, stdout=subprocess.PIPE)
    measured: _Measured = json.loads(ended.stdout.splitlines()[-1])
    median = statistics.median(measured["runs"])
    print(f"day {day}: a run {median:.2f} cpu s, maintenance {measured['maintain_tables']:.1f} s", file=sys.stderr)
    return measured


def main(day: int) -> int:
    """Run the day, and print seconds and sizes as JSON."""
    hours: list[_Hour] = pickle.loads(_HOURS.read_bytes())
    runs, started = list[float](), time.time()
    for hour in hours[(day - 1) * _DAY + 1 : day * _DAY + 1] if day else hours[:1]:
        hour.happen()
        began = time.process_time()
        _run("run_pipeline", run_pipeline.main, f"archive.uri={_ARCHIVE}", f"metadata.uri={_TOPIC}")
        runs.append(time.process_time() - began)
        _date_files(day, started)
    contents, began = _contents(), time.perf_counter()
    if day:
        with _dating_before_removals(lambda: _date_files(day, started)):
            _run("maintain_tables", maintain_tables.main)
        _date_files(day, started)
    print(json.dumps({"runs": runs, "maintain_tables": time.perf_counter() - began, "contents": contents}))
    return 0


@contextmanager
def _dating_before_removals(date_files: Callable[[], None]) -> Iterator[None]:
    """Give files their times before each removal of old entries, too: by the kernel's clock, what maintain_tables has
    just committed would be weeks old."""

    def remove_by_dates(location: str, before_ms: int) -> None:
        date_files()
        remove_old_entries(location, before_ms)

    with patch.object(maintain, "remove_old_entries", remove_by_dates):
        yield


def _date_files(day: int, started: float) -> None:
    """Set the times of files that were written since `started`: the kernel used the real clock, not this one."""
    ahead_s = day * 86_400
    for file in _files():
        written_s = file.stat().st_mtime
        if started - ahead_s <= written_s <= time.time() - ahead_s:
            os.utime(file, times=(written_s + ahead_s,) * 2)


def _run(name: str, job: Callable[[], int], *settings: str) -> None:
    assignments = f"warehouse.uri={_WAREHOUSE}", *settings
    sys.argv = [name, "--quiet", *(part for each in assignments for part in ("--set", each))]
    with redirect_stdout(StringIO()) as told:
        exit_code = job()
    if exit_code:
        raise RuntimeError(f"{name} has ended with {exit_code}: {told.getvalue()}")


def _figures(days: Sequence[_Measured], turns: Sequence[tuple[float, float]]) -> Iterator[Figure]:
    """All files of a week are kept: what grows until then must not grow after it."""
    early, late = (statistics.median(values) for values in zip(*turns, strict=True))
    yield Figure(
        benchmark="hourly",
        what=f"run_pipeline, the last of {len(days) * _DAY:,} runs",
        on=f"10 new, 10 deleted; {_TURNS} turns",
        value=late,
        unit="cpu s",
        against=f"the second day {early:.2f}",
        ratio=late / early,
        target="<= 1.3",
        is_met=late <= 1.3 * early,
    )
    week = min(8, len(days) - 1)
    for what in ("maintain_tables, s", *days[0]["contents"]):
        then, now = (days[at]["contents"].get(what, days[at]["maintain_tables"]) for at in (week, -1))
        yield Figure(
            benchmark="hourly",
            what=what,
            on=f"day {len(days)}",
            value=now,
            unit="",
            against=f"day {week + 1} {then:,.0f}",
            ratio=now / then,
        )


def _files() -> list[Path]:
    return [Path(folder) / name for folder, _, names in os.walk(_WAREHOUSE) for name in names]


def _contents() -> dict[str, int]:
    files = _files()
    logs = [file for file in files if "_delta_log" in file.parts]
    return {
        "files of the warehouse": len(files),
        "files of Delta's logs": len(logs),
        "bytes of the warehouse": sum(file.stat().st_size for file in files),
        "bytes of Delta's logs": sum(file.stat().st_size for file in logs),
    }


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
