"""index_files: how do the rows of a task's segments become files of the index tables?

In the task: a segment's pieces wait in a temporary file until its outcome is known; those of a good one are written to
the task's file of each table, a bad one's are dropped, so that no row of it ever reaches a table. The driver gets
outcomes, and which files there are to be committed. A task that is run twice writes files of its own each time, and
those of one run alone are told and committed. What cannot be read or written for a reason that is no segment's own is
an error of the task: Spark tries it again where it may, and the job ends with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from tempfile import SpooledTemporaryFile
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.archive.stores.s3_client import S3Options
from coldlog.indexing.builds.encoded_rows import COMMON_COLUMNS, OUTCOME, payload_schema, read_payloads
from coldlog.indexing.builds.segment_build import OUTCOME_SCHEMA, OutcomeKind
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.delta.data_files import DataFile, DataFileWriter, writing_temporary_files

ANSWER_DDL = "table_name STRING, payload BINARY"
_ANSWER_SCHEMA = pa.schema([("table_name", pa.string()), ("payload", pa.binary())])
FILE_SCHEMA = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64()), ("statistics", pa.string())]
)
_TABLES = {table.name: table for table in INDEX_TABLES}
_PAYLOAD_SCHEMAS = {table.name: payload_schema(table) for table in INDEX_TABLES}
_COMMON_FIELDS = {
    table.name: tuple(each for each in table.arrow_schema if each.name in COMMON_COLUMNS) for table in INDEX_TABLES
}
_FILE_BYTES = 128 << 20
_HELD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """Where index tables lie, by name, how S3 is asked there, and the build that the rows are of."""

    locations: dict[str, str]
    s3: S3Options
    build_number: int


def write_index_files(pieces: Iterator[pa.RecordBatch], place: IndexPlace) -> Iterator[pa.RecordBatch]:
    """Runs in tasks. What `build_segments` gives, as answers: outcomes as they come, and the files that hold the rows
    of the good segments. Raises `RetriableError` or `UsageError` where files cannot be written."""
    with closing(_Files(place=place)) as files, SpooledTemporaryFile(max_size=_HELD_BYTES) as content:
        waiting = _Waiting(content=content)
        for piece in pieces:
            row = piece.to_pylist()[0]
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
        with writing_temporary_files():  # what is buffered is written first
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
    """Each segment's outcome among the tasks' answers."""
    outcomes: list[dict[str, object]] = read_payloads(OUTCOME_SCHEMA, _payloads(OUTCOME, answers)).to_pylist()
    return outcomes


def files_of(table_name: str, answers: pa.Table) -> list[DataFile]:
    """The files of a table among the tasks' answers."""
    return [DataFile(**row) for row in read_payloads(FILE_SCHEMA, _payloads(table_name, answers)).to_pylist()]


def _payloads(name: str, answers: pa.Table) -> list[bytes]:
    found: list[bytes] = answers.filter(pc.field("table_name") == name).column("payload").to_pylist()
    return found


def _answer(table_name: str, payload: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"table_name": table_name, "payload": payload}], schema=_ANSWER_SCHEMA)


def _repeated(value: object, kind: pa.DataType, rows: pa.RecordBatch) -> pa.Array:
    """A column with one value; a text stands in it once."""
    if not pa.types.is_string(kind):
        return pa.repeat(pa.scalar(value, kind), rows.num_rows)
    places = pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows)
    return pa.DictionaryArray.from_arrays(places, pa.array([value], kind))
