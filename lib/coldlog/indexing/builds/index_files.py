"""Write the rows of a task's segments to files of the index tables.

In the task, the parts of a segment's index wait until the segment's outcome is known: few in memory, many in a
temporary file. Those of a good segment are written to the task's file of each table, together with those of other small
segments. Those of a bad segment are dropped, so no row of it reaches a table. The driver receives the outcomes and the
files to commit. If Spark runs a task twice, each run writes its own files, and the driver receives and commits only
those of one run. A failure to read or write that no segment causes is an error of the task: Spark repeats the task, if
it may, and otherwise the job fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from tempfile import SpooledTemporaryFile
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.archive.layouts.layout import ListedSegment
from coldlog.archive.stores.s3_client import S3Options
from coldlog.indexing.builds.index_rows import IndexPart, count_rows, iter_rows, own_schema
from coldlog.indexing.builds.segment_build import OUTCOME_SCHEMA, BuiltPart, Dropped, Outcome
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.files.data_files import DataFile, DataFileWriter, writing_temporary_files
from coldlog.tiering.rules.throttled_reads import ThrottledReads

ANSWER_DDL = "table_name STRING, payload BINARY"
ANSWER_SCHEMA = pa.schema([("table_name", pa.string()), ("payload", pa.binary())])
FILE_SCHEMA = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64()), ("statistics", pa.string())]
)
_OUTCOME, _THROTTLED = "outcome", "throttled"
_THROTTLED_SCHEMA = pa.schema([(name, pa.int64()) for name in ("count", "total_ms", "longest_ms")])
_TABLES = {table.name: table for table in INDEX_TABLES}
_OWN_SCHEMAS = {table.name: own_schema(table) for table in INDEX_TABLES}
_FILE_BYTES = 128 << 20
_HELD_BYTES = 4 << 20
PIECE_ROWS = 1 << 13
"""Batches and stairs together. More are not cheaper, and 8,192 of them take less than 1 MiB."""
_MOST_SEGMENTS = 1 << 10
"""So many small segments wait: the columns of a segment with one batch take 3 KB."""
_OUTCOMES_AT_ONCE = 1 << 8


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """The places of the index tables, by name, the options of requests to S3, and the build number of the rows."""

    locations: dict[str, str]
    s3: S3Options
    build_number: int


def write_index_files(
    parts: Iterator[BuiltPart], place: IndexPlace, throttled: Callable[[], ThrottledReads] = ThrottledReads
) -> Iterator[pa.RecordBatch]:
    """Write the parts of `build_segments`; yield outcomes and, for good segments, the files with their rows, and what
    `throttled` says at the end.

    Runs in tasks. Files that cannot be written raise `RetriableError` or `UsageError`.
    """
    outcomes: list[dict[str, object]] = []
    with closing(_Files(place=place)) as files, SpooledTemporaryFile(max_size=_HELD_BYTES) as content:
        waiting = _Waiting(content=content)
        for part in parts:
            if isinstance(part, Dropped):
                waiting.clear()
            elif not isinstance(part, Outcome):
                waiting.add(part)
                del part  # free it before the next one is read
            else:
                if part.is_indexed:
                    waiting.move_to(files, part.segment)
                waiting.clear()
                outcomes.append(part.row)
                if len(outcomes) == _OUTCOMES_AT_ONCE:
                    yield _outcomes(outcomes)
                    outcomes = []
                yield from files.iter_full()
        yield from files.iter_rest()
    if outcomes:
        yield _outcomes(outcomes)
    if (reads := throttled()).count:
        rows = pa.RecordBatch.from_pylist([asdict(reads)], schema=_THROTTLED_SCHEMA)
        yield _answer(_THROTTLED, rows)


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """The parts of one segment. Those of a large one become rows in a temporary file."""

    content: IO[bytes]
    parts: list[IndexPart] = field(default_factory=list)
    row_count: int = 0
    spooled: list[tuple[str, int]] = field(default_factory=list)
    """Tables and sizes of the pieces in the file."""

    def add(self, part: IndexPart) -> None:
        self.parts.append(part)
        self.row_count += count_rows(part)
        if self.row_count >= PIECE_ROWS:
            self._spool()

    def move_to(self, files: _Files, segment: ListedSegment) -> None:
        if not self.spooled:
            files.add_parts(segment, self.parts, self.row_count)
            return
        files.write_parts()
        self._spool()
        with writing_temporary_files():  # seek also flushes the buffer
            self.content.seek(0)
        for name, size in self.spooled:
            rows = pa.ipc.read_record_batch(pa.py_buffer(self.content.read(size)), _OWN_SCHEMAS[name])
            files.add_rows(_TABLES[name], [segment], np.zeros(len(rows), dtype=np.int64), rows)

    def clear(self) -> None:
        if self.spooled:
            with writing_temporary_files():
                self.content.seek(0)
            self.content.truncate()
        self.parts, self.row_count, self.spooled = [], 0, []

    def _spool(self) -> None:
        for table, _, rows in iter_rows(self.parts):
            payload = rows.serialize()
            with writing_temporary_files():
                self.content.write(payload)
            self.spooled.append((table.name, len(payload)))
        self.parts, self.row_count = [], 0


@dataclass(slots=True, kw_only=True)
class _Files:
    """The task's open file of each table, and the parts of good small segments, which are written together."""

    place: IndexPlace
    writers: dict[str, DataFileWriter] = field(default_factory=dict)
    segments: list[ListedSegment] = field(default_factory=list)
    parts: list[IndexPart] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    """Of each part, the place of its segment."""
    row_count: int = 0

    def add_parts(self, segment: ListedSegment, parts: list[IndexPart], row_count: int) -> None:
        self.owners += [len(self.segments)] * len(parts)
        self.parts += parts
        self.segments.append(segment)
        self.row_count += row_count
        if self.row_count >= PIECE_ROWS or len(self.segments) >= _MOST_SEGMENTS:
            self.write_parts()

    def add_rows(
        self, table: TableDefinition, segments: list[ListedSegment], places: npt.NDArray[np.int64], rows: pa.RecordBatch
    ) -> None:
        """Add rows, each of the segment at its place."""
        columns: dict[str, pa.Array] = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name in ("topic", "topic_id", "segment_id"):
            texts = pa.array([getattr(each, name) for each in segments], pa.string()).dictionary_encode()
            # A text is stored once.
            columns[name] = pa.DictionaryArray.from_arrays(texts.indices.take(pa.array(places)), texts.dictionary)
        columns["partition"] = pa.array(np.array([each.partition for each in segments], dtype=np.int32)[places])
        columns["build_number"] = pa.repeat(pa.scalar(self.place.build_number, pa.int64()), len(rows))
        if table.name not in self.writers:
            self.writers[table.name] = DataFileWriter(table=table)
        self.writers[table.name].add(columns)

    def write_parts(self) -> None:
        """Write the parts that wait."""
        if self.parts:
            owners = np.array(self.owners)
            for table, places, rows in iter_rows(self.parts):
                self.add_rows(table, self.segments, owners[places], rows)
        self.segments, self.parts, self.owners, self.row_count = [], [], [], 0

    def iter_full(self) -> Iterator[pa.RecordBatch]:
        for table_name in [name for name, writer in self.writers.items() if writer.size_bytes >= _FILE_BYTES]:
            yield self._finish(table_name)

    def iter_rest(self) -> Iterator[pa.RecordBatch]:
        self.write_parts()
        for table_name in list(self.writers):
            yield self._finish(table_name)

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()

    def _finish(self, table_name: str) -> pa.RecordBatch:
        written = self.writers.pop(table_name).finish(self.place.locations[table_name], self.place.s3)
        return _answer(table_name, pa.RecordBatch.from_pylist([asdict(written)], schema=FILE_SCHEMA))


def outcome_rows(outcomes: Sequence[Mapping[str, object]]) -> pa.RecordBatch:
    """Make rows of `OUTCOME_SCHEMA`; values that are missing are NULL. As structs the values are converted in one call:
    for the 38 columns that takes a third of the time of RecordBatch.from_pylist."""
    return pa.RecordBatch.from_struct_array(pa.array(outcomes, pa.struct(list(OUTCOME_SCHEMA))))


def outcomes_of(answers: pa.Table) -> pa.Table:
    """Read the outcome of each segment, a row of `OUTCOME_SCHEMA`, from the tasks' answers."""
    return _read(OUTCOME_SCHEMA, _OUTCOME, answers)


def files_of(table_name: str, answers: pa.Table) -> list[DataFile]:
    """Read the files of a table from the tasks' answers."""
    return [DataFile(**row) for row in _read(FILE_SCHEMA, table_name, answers).to_pylist()]


def throttled_of(answers: pa.Table) -> ThrottledReads:
    """Sum the reads that waited for the read quota, of all tasks."""
    found = ThrottledReads()
    for row in _read(_THROTTLED_SCHEMA, _THROTTLED, answers).to_pylist():
        found.add_all(ThrottledReads(**row))
    return found


def _read(schema: pa.Schema, name: str, answers: pa.Table) -> pa.Table:
    payloads = answers.filter(pc.field("table_name") == name).column("payload").to_pylist()
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(p), schema) for p in payloads], schema=schema)


def _outcomes(outcomes: list[dict[str, object]]) -> pa.RecordBatch:
    return _answer(_OUTCOME, outcome_rows(outcomes))


def _answer(name: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    answer = {"table_name": name, "payload": rows.serialize().to_pybytes()}
    return pa.RecordBatch.from_pylist([answer], schema=ANSWER_SCHEMA)
