"""grown_archive: an archive of millions of segments, of which only ten partitions have files.

Ten partitions of a thousand segments are written with their events, and indexed by run_pipeline but for the last
segment of each. Then their rows in every table are repeated for other partitions of the same topic, with events before
theirs, so that the warehouse is that of an archive of many times as many. Of the other partitions there are empty
directories only: a run that follows the events looks at none of them. One that lists everything would find them gone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from benchmarks.shared.generated_logs import CACHE
from benchmarks.small_runs import Place, small_partition

from builders.archive_writer import ARCHIVE_FOLDER
from builders.metadata_topic import finished, values_of, write_topic
from builders.segment_builder import Batch, Record, build_segment
from coldlog.archive.metadata_log import list_metadata_partitions
from coldlog.archive.metadata_log_reader import iter_metadata_records
from coldlog.archive.open_archive import open_store
from coldlog.archive.stores.s3_client import S3Options
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.scan.listing import ArchiveDigest
from coldlog.indexing.scan.touched import keep_digests, read_kept
from coldlog.indexing.sources import open_event_source
from coldlog.indexing.witness import ARCHIVE, EVENTS, KEY, read_surroundings, read_table_states
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.metadata_positions import METADATA_POSITIONS
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.files.data_files import DataFile
from coldlog.tables.delta.files.table_files import list_table_files, read_whole_file, table_state
from coldlog.tables.delta.plain_commit import commit_files, commit_rearranged, commit_rows, write_file
from coldlog.tables.delta.row_edits import RowChange
from coldlog.tables.delta.run_rows import read_newest_run
from coldlog.tables.delta.small_table import SmallTable

REAL_PARTITIONS, SEGMENTS_A_PARTITION = 10, 1_000
_FILE_ROWS = 25_000
_LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)


def grown_place(count: int) -> Place:
    """Return a place of so many segments, in steps of ten thousand; ten are new. The first call makes it."""
    real = _indexed_place()
    copies = max(1, count // (REAL_PARTITIONS * SEGMENTS_A_PARTITION))
    archive = CACHE / f"grown-{count}"
    place = replace(real, name=archive.name, archive=archive, segment_count=count, topics=_topics(archive))
    if not place.pristine.exists():
        for folder, copied in ((archive, real.archive), (place.aside, real.aside), (place.warehouse, real.pristine)):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(copied, folder)
        _grow(place, copies, real)
        shutil.copytree(place.warehouse, place.pristine)
    return _with_held_back(place)


def _indexed_place() -> Place:
    """The ten partitions with files, indexed without their last segments."""
    archive = CACHE / "grown-from"
    place = Place(name=archive.name, archive=archive, held_back=(), segment_count=0, topics=_topics(archive))
    if not place.pristine.exists():
        for folder in (archive, place.aside, _topics(archive), place.warehouse):
            shutil.rmtree(folder, ignore_errors=True)
        written = [small_partition(archive, number, SEGMENTS_A_PARTITION) for number in range(REAL_PARTITIONS)]
        new = finished(*(segments[-1] for segments in written))
        known = finished(*(each for segments in written for each in segments[:-1]))
        for name, events in (("before", known), ("after", [*known, *new]), ("new", new), ("last", known[-1:])):
            write_topic(_topics(archive) / name, {0: values_of(events)})
        (_topics(archive) / "count").write_text(str(len(known)))
        _with_held_back(place).index_without_held_back()
    return _with_held_back(place)


def _topics(archive: Path) -> Path:
    return archive.with_name(archive.name + "-topics")


def _with_held_back(place: Place) -> Place:
    root = place.archive / ARCHIVE_FOLDER
    stems = []
    for number in range(REAL_PARTITIONS):
        [name] = [folder.name for folder in root.glob(f"small-{number}-*")]
        logs = [*(root / name).glob("*.log"), *(place.aside / name).glob("*.log")]
        stems.append(root / name / max(logs, key=lambda log: log.name).stem)
    return replace(place, held_back=tuple(stems))


def _grow(place: Place, copies: int, real: Place) -> None:
    count = int((_topics(real.archive) / "count").read_text())
    uri, settings = str(place.warehouse), load_settings("local", place.settings)
    run = read_newest_run(uri)
    assert run is not None
    summary = json.loads(str(run["summary"]))
    kept = read_kept(uri, summary[KEY][ARCHIVE])
    for table in ALL_TABLES:
        if "partition" in table.column_names:
            _repeat(f"{uri}/{table.name}", table, copies, count)
    # The topic's older segments are gone; the record at the last offset that was read is still there.
    last, new = (_values(_topics(real.archive) / name) for name in ("last", "new"))
    for name, values in (("before", last), ("after", last + new)):
        _write_topic_from(_topics(place.archive) / name, copies * count - 1, values)
    shutil.copytree(_topics(place.archive) / "before", _topics(place.archive) / "now")
    directories = []
    for copy in range(copies):
        for each in kept.values():
            directory = _moved(each.directory.name, copy), each.directory.partition + REAL_PARTITIONS * copy
            (place.archive / ARCHIVE_FOLDER / directory[0]).mkdir(exist_ok=True)
            there = replace(each.directory, name=directory[0], partition=directory[1])
            directories.append(replace(each, directory=there))
    archive = ArchiveDigest.of(directories, ())
    keep_digests(uri, archive)
    position: dict[str, object] = {
        "metadata_partition": 0, "last_offset": copies * count - 1, "value": last[0], "has_problem": False,
        "event_count": copies * count, "last_event_offset": copies * count - 1, "lost_offsets": [],
        "events_state": table_state(f"{uri}/{SEGMENT_EVENTS.name}", SEGMENT_EVENTS),
    }  # fmt: skip
    SmallTable(uri=uri, table=METADATA_POSITIONS).replace_all([position])
    source = open_event_source(settings)
    assert source is not None
    states = {**read_surroundings(settings), **read_table_states(uri)}
    summary[KEY] |= {ARCHIVE: archive.digest, EVENTS: source.digest(), **states}
    row = run | {"summary": json.dumps(summary), "run_id": "grown", "started_ms": int(str(run["started_ms"])) + 1}
    commit_rows(f"{uri}/{JOB_RUNS.name}", JOB_RUNS, RowChange(added=[row]))


def _moved(name: str, copy: int) -> str:
    """The name of a directory, of the partition `copy` times ten behind it."""
    topic, number, topic_id = name.split("-", 2)
    return f"{topic}-{int(number) + REAL_PARTITIONS * copy}-{topic_id}"


def _values(topic: Path) -> list[bytes | None]:
    """The values of the records of a topic's only partition."""
    store = open_store(str(topic), S3Options())
    [partition] = list_metadata_partitions(store)
    return [record.value for record in iter_metadata_records(store, partition, 0, _LIMITS)]


def _write_topic_from(topic: Path, first_offset: int, values: Sequence[bytes | None]) -> None:
    shutil.rmtree(topic, ignore_errors=True)
    folder = topic / "__remote_log_metadata-0"
    folder.mkdir(parents=True)
    batches = [
        Batch(base_offset=offset, records=(Record(timestamp_ms=1_000, value=value),))
        for offset, value in enumerate(values, start=first_offset)
    ]
    (folder / f"{first_offset:020d}.log").write_bytes(build_segment(batches))


def _repeat(location: str, table: TableDefinition, copies: int, events: int) -> None:
    """Replace the rows by those of all copies, in sorted files."""
    files = list_table_files(location, table, [])
    if not files.paths:
        return
    rows = pa.concat_tables([read_whole_file(location, path, table) for path in files.paths])
    rows = rows.sort_by([(name, "ascending") for name in table.clustered_by])
    written, waiting = list[DataFile](), list[pa.Table]()
    for copy in range(copies):
        # The events of the real partitions are behind all others.
        waiting.append(_copy_of(rows, table, copy, events * ((copy or copies) - 1)))
        if sum(map(len, waiting)) >= 4 * _FILE_ROWS or copy == copies - 1:
            written += list(_write(location, table, pa.concat_tables(waiting)))
            waiting = []
    commit_files(location, table, written, [])
    commit_rearranged(location, table, files.paths, [])


def _write(location: str, table: TableDefinition, rows: pa.Table) -> Iterator[DataFile]:
    rows = rows.sort_by([(name, "ascending") for name in table.clustered_by])
    for at in range(0, rows.num_rows, _FILE_ROWS):
        yield write_file(location, table, rows.slice(at, _FILE_ROWS))


def _copy_of(rows: pa.Table, table: TableDefinition, copy: int, shift: int) -> pa.Table:
    """The rows of a copy, with events so many offsets later."""

    def change(name: str, by: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> None:
        nonlocal rows
        rows = rows.set_column(rows.schema.names.index(name), rows.schema.field(name), by(rows[name]))

    number = pa.scalar(REAL_PARTITIONS * copy, pa.int32())
    change("partition", lambda column: pc.add(column, number))
    if table is SEGMENT_EVENTS:
        last = pa.scalar(shift, pa.int64())
        change("metadata_offset", lambda column: pc.add(column, last))
    return rows
