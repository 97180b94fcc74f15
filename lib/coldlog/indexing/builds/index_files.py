"""Write the rows of a task's segments to files of the index tables.

In the task, the pieces of a segment wait in a temporary file until the segment's outcome is known. The pieces of a good
segment are written to the task's file of each table. Those of a bad segment are dropped, so no row of it reaches a
table. The driver receives the outcomes and the files to commit. If Spark runs a task twice, each run writes its own
files, and the driver receives and commits only those of one run. A failure to read or write that no segment causes is
an error of the task: Spark repeats the task, if it may, and otherwise the job fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from tempfile import SpooledTemporaryFile
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.archive.stores.s3_client import S3Options
from coldlog.indexing.builds.encoded_rows import COMMON_COLUMNS, DROPPED, OUTCOME, payload_schema, read_payloads
from coldlog.indexing.builds.segment_build import OUTCOME_SCHEMA, OutcomeKind
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.delta.files.data_files import DataFile, DataFileWriter, writing_temporary_files
from coldlog.tiering.rules.throttled_reads import ThrottledReads

ANSWER_DDL = "table_name STRING, payload BINARY"
ANSWER_SCHEMA = pa.schema([("table_name", pa.string()), ("payload", pa.binary())])
FILE_SCHEMA = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64()), ("statistics", pa.string())]
)
_THROTTLED = "throttled"
_THROTTLED_SCHEMA = pa.schema([(name, pa.int64()) for name in ("count", "total_ms", "longest_ms")])
_TABLES = {table.name: table for table in INDEX_TABLES}
_PAYLOAD_SCHEMAS = {table.name: payload_schema(table) for table in INDEX_TABLES}
_COMMON_FIELDS = {
    table.name: tuple(each for each in table.arrow_schema if each.name in COMMON_COLUMNS) for table in INDEX_TABLES
}
_FILE_BYTES = 128 << 20
_HELD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """The places of the index tables, by name, the options of requests to S3, and the build number of the rows."""

    locations: dict[str, str]
    s3: S3Options
    build_number: int


def write_index_files(
    pieces: Iterator[pa.RecordBatch], place: IndexPlace, throttled: Callable[[], ThrottledReads] = ThrottledReads
) -> Iterator[pa.RecordBatch]:
    """Write the pieces of `build_segments`; yield outcomes and, for good segments, the files with their rows, and what
    `throttled` says at the end.

    Runs in tasks. Files that cannot be written raise `RetriableError` or `UsageError`.
    """
    with closing(_Files(place=place)) as files, SpooledTemporaryFile(max_size=_HELD_BYTES) as content:
        waiting = _Waiting(content=content)
        for piece in pieces:
            row = piece.to_pylist()[0]
            if row["table_name"] == DROPPED:
                waiting.clear()
                continue
            if row["table_name"] != OUTCOME:
                waiting.add(row)
                continue
            outcome = pa.ipc.read_record_batch(pa.py_buffer(row["payload"]), OUTCOME_SCHEMA)
            if outcome.column("outcome")[0].as_py() == OutcomeKind.INDEXED.value:
                for table_name, payload in waiting.iter_pieces():
                    files.add(table_name, row, payload)
            waiting.clear()
            yield _answer(OUTCOME, row["payload"])
            yield from files.iter_full()
        yield from files.iter_rest()
    if (reads := throttled()).count:
        rows = pa.RecordBatch.from_pylist([asdict(reads)], schema=_THROTTLED_SCHEMA)
        yield _answer(_THROTTLED, rows.serialize().to_pybytes())


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """Pieces of one segment."""

    content: IO[bytes]
    sizes: list[tuple[str, int]] = field(default_factory=list)

    def add(self, piece: dict[str, object]) -> None:
        payload = piece["payload"]
        assert isinstance(payload, bytes)
        with writing_temporary_files():
            self.content.write(payload)
        self.sizes.append((str(piece["table_name"]), len(payload)))

    def iter_pieces(self) -> Iterator[tuple[str, bytes]]:
        with writing_temporary_files():  # seek also flushes the buffer
            self.content.seek(0)
        for table_name, size in self.sizes:
            yield table_name, self.content.read(size)

    def clear(self) -> None:
        with writing_temporary_files():
            self.content.seek(0)
        self.content.truncate()
        self.sizes.clear()


@dataclass(slots=True, kw_only=True)
class _Files:
    """The task's open file of each table."""

    place: IndexPlace
    writers: dict[str, DataFileWriter] = field(default_factory=dict)

    def add(self, table_name: str, segment: dict[str, object], payload: bytes) -> None:
        rows = pa.ipc.read_record_batch(pa.py_buffer(payload), _PAYLOAD_SCHEMAS[table_name])
        common = {**segment, "build_number": self.place.build_number}
        columns = {
            each.name: _repeated(common[each.name], each.type, rows) for each in _COMMON_FIELDS[table_name]
        } | dict(zip(rows.schema.names, rows.columns, strict=True))
        if table_name not in self.writers:
            self.writers[table_name] = DataFileWriter(table=_TABLES[table_name])
        self.writers[table_name].add(columns)

    def iter_full(self) -> Iterator[pa.RecordBatch]:
        for table_name in [name for name, writer in self.writers.items() if writer.size_bytes >= _FILE_BYTES]:
            yield self._finish(table_name)

    def iter_rest(self) -> Iterator[pa.RecordBatch]:
        for table_name in list(self.writers):
            yield self._finish(table_name)

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()

    def _finish(self, table_name: str) -> pa.RecordBatch:
        written = self.writers.pop(table_name).finish(self.place.locations[table_name], self.place.s3)
        rows = pa.RecordBatch.from_pylist([asdict(written)], schema=FILE_SCHEMA)
        return _answer(table_name, rows.serialize().to_pybytes())


def outcomes_of(answers: pa.Table) -> list[dict[str, object]]:
    """Read the outcome of each segment from the tasks' answers."""
    outcomes: list[dict[str, object]] = read_payloads(OUTCOME_SCHEMA, _payloads(OUTCOME, answers)).to_pylist()
    return outcomes


def files_of(table_name: str, answers: pa.Table) -> list[DataFile]:
    """Read the files of a table from the tasks' answers."""
    return [DataFile(**row) for row in read_payloads(FILE_SCHEMA, _payloads(table_name, answers)).to_pylist()]


def throttled_of(answers: pa.Table) -> ThrottledReads:
    """Sum the reads that waited for the read quota, of all tasks."""
    found = ThrottledReads()
    for row in read_payloads(_THROTTLED_SCHEMA, _payloads(_THROTTLED, answers)).to_pylist():
        found.add_all(ThrottledReads(**row))
    return found


def _payloads(name: str, answers: pa.Table) -> list[bytes]:
    found: list[bytes] = answers.filter(pc.field("table_name") == name).column("payload").to_pylist()
    return found


def _answer(table_name: str, payload: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"table_name": table_name, "payload": payload}], schema=ANSWER_SCHEMA)


def _repeated(value: object, kind: pa.DataType, rows: pa.RecordBatch) -> pa.Array:
    """Make a column with one value; a text is stored once."""
    if not pa.types.is_string(kind):
        return pa.repeat(pa.scalar(value, kind), rows.num_rows)
    places = pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows)
    return pa.DictionaryArray.from_arrays(places, pa.array([value], kind))
