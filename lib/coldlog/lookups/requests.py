"""Read requests from a CSV or JSON lines file.

Both give one Arrow table of `REQUEST_SCHEMA`, numbered in the order asked. The columns topic, partition and
timestamp_ms are required. The other columns of the schema are optional; columns outside the schema are ignored.

Refused (`UsageError`): a row that cannot be read; the error names the file and the line.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from coldlog.errors import UsageError
from coldlog.lookups.rows import REQUEST_DEFAULTS, REQUEST_TYPES, numbered_requests, requests_from_rows
from coldlog.model.states import IsolationLevel

REQUIRED = ("topic", "partition", "timestamp_ms")
ISOLATION_LEVELS = {level.value for level in IsolationLevel}
_MOST_CELL_BYTES = 1 << 30
_INTEGER = re.compile(r"-?[0-9]{1,19}")


def is_file_of_requests(path: str) -> bool:
    """True if `read_requests_file` reads it. A folder, or a file with another suffix, is a Delta table."""
    return Path(path).suffix.lower() in (".csv", ".json", ".jsonl") and not Path(path).is_dir()


def read_requests_file(path: str) -> pa.Table:
    """Read requests from a `.csv` file, or from a `.json` or `.jsonl` file with one object per line."""
    if not Path(path).is_file():
        raise UsageError(f"{Path(path).absolute()}: there is no such file of requests")
    try:
        is_csv = Path(path).suffix.lower() == ".csv"
        return _from_csv(path) if is_csv else _from_rows(path, _json_rows(path))
    except UnicodeDecodeError as unreadable:
        raise UsageError(
            f"{path}: not UTF-8 ({unreadable.reason} at byte {unreadable.start}); save it as UTF-8"
        ) from unreadable


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


def _json_rows(path: str) -> Iterator[tuple[int, dict[str, object]]]:
    with open(path, encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as unreadable:  # ValueError: also a number with thousands of digits
                raise UsageError(
                    f"{path}, line {number}: not JSON: {unreadable}; give one object per line"
                ) from unreadable
            if not isinstance(row, dict):
                raise UsageError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}")
            yield number, row


def _from_rows(path: str, rows: Iterator[tuple[int, dict[str, object]]]) -> pa.Table:
    return requests_from_rows([_checked(path, number, row) for number, row in rows])


def _checked(path: str, number: int, row: dict[str, object]) -> tuple[object, ...]:
    topic = row.get("topic")
    if not topic or not _is_text(topic):
        raise UsageError(f"{path}, line {number}: topic: expected a name, found {topic!r}")
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
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _integer(path: str, number: int, name: str, value: object) -> int:
    text, limit = str(value).strip(), 2 ** (REQUEST_TYPES[name].bit_width - 1)
    if isinstance(value, bool) or not _INTEGER.fullmatch(text) or not -limit <= int(text) < limit:
        wanted = f"an integer below {limit}"
        if name == "timestamp_ms":
            wanted += ", or a special timestamp from -1 to -6"
        raise UsageError(f"{path}, line {number}: {name}: expected {wanted}, found {value!r}")
    return int(text)
