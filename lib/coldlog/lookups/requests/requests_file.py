"""Read requests from a CSV or JSON lines file.

Both give one Arrow table of `REQUEST_SCHEMA`, numbered in the order asked. The columns topic, partition and
timestamp_ms are required. The other columns of the schema are optional; columns outside the schema are ignored.

Refused (`UsageError`): a row that cannot be read; the error names the file and the line.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from coldlog.errors import UsageError
from coldlog.lookups.requests.rows import REQUEST_DEFAULTS, REQUEST_TYPES, numbered_requests, requests_from_rows
from coldlog.model.states import IsolationLevel
from coldlog.tables.delta.locations import folder_of_spark
from coldlog.tables.delta.log_check import LOG_FOLDER

if TYPE_CHECKING:
    from coldlog.runtime.settings import Settings

REQUIRED = ("topic", "partition", "timestamp_ms")
ISOLATION_LEVELS = {level.value for level in IsolationLevel}
_REQUIRED_NAMES = set(REQUIRED)
_OPTIONAL = REQUEST_TYPES.keys() - _REQUIRED_NAMES
_PLAIN_KINDS = {"topic": {str}, "partition": {int}, "timestamp_ms": {int}}
_CHUNK_LINES = 10_000
_LIMITS = {name: 2 ** (kind.bit_width - 1) for name, kind in REQUEST_TYPES.items() if not pa.types.is_string(kind)}
_MOST_CELL_BYTES = 1 << 30
_INTEGER = re.compile(r"-?[0-9]{1,19}")


def is_file_of_requests(path: str) -> bool:
    """True if `read_requests_file` reads it. A folder, or a file with another suffix, is a Delta table."""
    return Path(path).suffix.lower() in (".csv", ".json", ".jsonl") and not os.path.isdir(path)


def require_table_of_requests(place: str, settings: Settings) -> None:
    """Raise `UsageError` if Spark would read the requests from a folder of this machine that has no Delta table."""
    folder = folder_of_spark(place, settings)
    # Delta takes `table@v3` for a version of a table.
    if folder is not None and "@" not in Path(folder).name and not os.path.isdir(os.path.join(folder, LOG_FOLDER)):
        raise UsageError(f"no requests at {place}: expected a .csv or .jsonl file or a Delta table")


def no_requests_text(path: str) -> str:
    """Say that a file or a table of requests has none: most likely what should have filled it failed."""
    return f"{path}: no requests, so there are no answers"


def read_requests_file(path: str) -> pa.Table:
    """Read requests from a `.csv` file, or from a `.json` or `.jsonl` file with one object per line."""
    try:
        if not Path(path).is_file():
            raise UsageError(f"{Path(path).absolute()}: there is no such file of requests")
        is_csv = Path(path).suffix.lower() == ".csv"
        return _from_csv(path) if is_csv else _from_json(path)
    except UnicodeDecodeError as unreadable:
        raise UsageError(
            f"{path}: not UTF-8 ({unreadable.reason} at byte {unreadable.start}); save it as UTF-8"
        ) from unreadable
    except OSError as unreadable:
        raise UsageError(f"{path}: this file of requests cannot be read: {unreadable.strerror or unreadable}") from None


def _from_csv(path: str) -> pa.Table:
    options = pa_csv.ConvertOptions(
        column_types=REQUEST_TYPES,
        include_columns=list(REQUEST_TYPES),
        include_missing_columns=True,
        strings_can_be_null=True,
        null_values=[""],
    )
    parse = pa_csv.ParseOptions(newlines_in_values=True)
    _require_columns(path)
    try:
        table = pa_csv.read_csv(path, convert_options=options, parse_options=parse)
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        return _from_rows(path, _csv_rows(path))
    has_no_value = any(table.column(name).null_count for name in REQUIRED)
    if has_no_value or not has_known_levels(table.column("isolation_level")):
        return _from_rows(path, _csv_rows(path))
    return numbered_requests({name: table.column(name) for name in REQUEST_TYPES})


def has_known_levels(column: pa.ChunkedArray) -> bool:
    """Whether every isolation level is one, or NULL."""
    return set(pc.unique(column).to_pylist()) <= {*ISOLATION_LEVELS, None}


def _require_columns(path: str) -> None:
    with open(path, newline="", encoding="utf-8-sig") as lines:
        try:
            names = next(csv.reader(lines), [])
        except csv.Error as unreadable:
            raise UsageError(f"{path}, line 1: not CSV: {unreadable}") from unreadable
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise UsageError(
            f"{path}: the first line must name topic,partition,timestamp_ms; missing: " + ",".join(missing)
        )
    repeated = [name for name in REQUEST_TYPES if names.count(name) > 1]
    if repeated:
        raise UsageError(f"{path}: the first line names {','.join(repeated)} more than once")


def _csv_rows(path: str) -> Iterator[tuple[int, dict[str, object]]]:
    csv.field_size_limit(_MOST_CELL_BYTES)
    with open(path, newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines)
        try:
            for row in reader:
                if None in row:
                    raise UsageError(f"{path}, line {reader.line_num}: more values than columns in the first line")
                yield reader.line_num, dict(row)
        except csv.Error as unreadable:
            raise UsageError(f"{path}, line {reader.line_num}: not CSV: {unreadable}") from unreadable


def _from_json(path: str) -> pa.Table:
    with open(path, encoding="utf-8-sig") as lines:
        numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
        tables = []
        while chunk := list(islice(numbered, _CHUNK_LINES)):
            columns = _columns_of([line for _, line in chunk])
            if columns is None:
                tables.append(_from_rows(path, _json_rows(path, chunk)))
            else:
                tables.append(numbered_requests(columns))
    if not tables:
        return requests_from_rows([])
    table = pa.concat_tables(tables)
    return numbered_requests({name: table.column(name) for name in REQUEST_TYPES})


def _columns_of(lines: list[str]) -> dict[str, pa.Array] | None:
    """Read lines at once, which takes a third of the time; None if one of them needs a closer look.

    A text that no line has stands between the lines, so that a value over two lines, or two in one line, are noticed.
    """
    between = uuid4().hex
    try:
        values = json.loads("[" + f',"{between}",'.join(lines) + "]")
        rows = values[::2]
        is_line_for_line = len(values) == 2 * len(lines) - 1 and set(values[1::2]) <= {between}
        if not is_line_for_line or set(map(type, rows)) != {dict}:
            return None
        columns = {name: [row.get(name) for row in rows] for name in REQUIRED}
        kinds = {name: set(map(type, column)) for name, column in columns.items()}
        has_more = not _OPTIONAL.isdisjoint(set().union(*rows))
        if has_more or kinds != _PLAIN_KINDS or "" in columns["topic"]:
            return None
        return {name: pa.array(column, REQUEST_TYPES[name]) for name, column in columns.items()}
    except (ValueError, TypeError, RecursionError, OverflowError):  # of Arrow too
        return None


def _json_rows(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as unreadable:  # ValueError: also a number with thousands of digits
            raise UsageError(f"{path}, line {number}: not JSON: {unreadable}; give one object per line") from unreadable
        if not isinstance(row, dict):
            raise UsageError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}")
        yield number, row


def _from_rows(path: str, rows: Iterator[tuple[int, dict[str, object]]]) -> pa.Table:
    return requests_from_rows([_checked(path, number, row) for number, row in rows])


def _checked(path: str, number: int, row: dict[str, object]) -> tuple[object, ...]:
    topic = row.get("topic")
    if not topic or not _is_text(topic):
        raise UsageError(f"{path}, line {number}: topic: expected a name, found {topic!r}")
    if row.keys() <= _REQUIRED_NAMES:  # most rows of most files
        return (topic, *(_integer(path, number, name, row.get(name)) for name in REQUIRED[1:]))
    return tuple(_value(path, number, row, name) for name in REQUEST_TYPES)


def _value(path: str, number: int, row: dict[str, object], name: str) -> object:
    value = row.get(name)
    if name in REQUEST_DEFAULTS and value in (None, ""):
        return REQUEST_DEFAULTS[name]
    if name == "isolation_level" and not (_is_text(value) and value in ISOLATION_LEVELS):
        known = " or ".join(sorted(ISOLATION_LEVELS))
        raise UsageError(f"{path}, line {number}: isolation_level: expected {known}, found {value!r}")
    if not pa.types.is_string(REQUEST_TYPES[name]):
        return _integer(path, number, name, value)
    if not _is_text(value) and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(f"{path}, line {number}: {name}: expected text, found {value!r}")
    return str(value)


def _is_text(value: object) -> bool:
    """True for a string that can be written as UTF-8: it has no lone surrogate."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _integer(path: str, number: int, name: str, value: object) -> int:
    limit = _LIMITS[name]
    if type(value) is int and -limit <= value < limit:
        return value
    text = str(value).strip()
    if isinstance(value, bool) or not _INTEGER.fullmatch(text) or not -limit <= int(text) < limit:
        wanted = f"an integer below {limit}"
        if name == "timestamp_ms":
            wanted += ", or a special timestamp from -1 to -6"
        raise UsageError(f"{path}, line {number}: {name}: expected {wanted}, found {value!r}")
    return int(text)
