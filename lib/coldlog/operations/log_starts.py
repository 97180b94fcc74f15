"""log_starts: which log start offsets did the operator supply?

A CSV file `topic,partition,log_start_offset` with a header; the table holds what the file holds now, so that a line
that is taken out no longer counts. Where nothing is supplied, deleted segments and leader epochs tell (see
`index.partition_plan`); the highest of all counts.

Refused (`UsageError`): a file that cannot be read, columns that lack, a partition named twice, what is no number.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from coldlog.errors import UsageError
from coldlog.tables.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.warehouse import Warehouse

_INTEGER = re.compile(r"-?[0-9]{1,19}")


def read_log_start_offsets(warehouse: Warehouse, path: str) -> int:
    """Brings `log_start_offsets` to what the file says; returns how many rows changed."""
    rows = [_log_start_offset(path, number, row) for number, row in _csv_rows(path)]
    repeated = len(rows) - len({(row["topic"], row["partition"]) for row in rows})
    if repeated:
        raise UsageError(f"{path}: {repeated} topic-partitions are named more than once; name each once")
    given = warehouse.local(LOG_START_OFFSETS, rows)
    stored = warehouse.read(LOG_START_OFFSETS)
    changed = given.join(stored, list(LOG_START_OFFSETS.column_names), "left_anti")
    changed_count = changed.count()
    if changed_count:
        warehouse.merge(LOG_START_OFFSETS, changed)
    no_more = stored.join(given, list(LOG_START_OFFSETS.key), "left_anti")
    removed_count = no_more.count()
    if removed_count:
        warehouse.delete_keys(LOG_START_OFFSETS, no_more)
    return changed_count + removed_count


def _csv_rows(path: str) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in LOG_START_OFFSETS.column_names if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"{path}: the first line must name topic,partition,log_start_offset; {missing} lack")
            for row in reader:
                yield reader.line_num, row
    except OSError as unreadable:
        raise UsageError(f"log_start_offsets.uri cannot be read: {path}: {unreadable.strerror}") from unreadable
    except UnicodeDecodeError as unreadable:
        raise UsageError(f"{path}: not UTF-8 text: {unreadable.reason} at byte {unreadable.start}") from unreadable


def _log_start_offset(path: str, number: int, row: dict[str, str]) -> dict[str, object]:
    numbers = (row["partition"] or "", row["log_start_offset"] or "")
    if not all(_INTEGER.fullmatch(text) for text in numbers):
        raise UsageError(f"{path}, line {number}: partition and log_start_offset must be integers: {row}")
    partition, offset = int(numbers[0]), int(numbers[1])
    if not row["topic"] or not 0 <= partition < 2**31 or not 0 <= offset < 2**63:
        raise UsageError(f"{path}, line {number}: a topic, a partition and an offset of 0 or more are expected: {row}")
    return {"topic": row["topic"], "partition": partition, "log_start_offset": offset}
