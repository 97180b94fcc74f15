"""Write answers as JSON lines, as a Delta table, or as the `startingOffsets` JSON of Spark's Kafka source.

JSON lines have one object per request, in the order asked. A file appears complete or not at all; a device or a FIFO
is written to, and `-` is standard output.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from coldlog.errors import UsageError
from coldlog.model.list_offsets import ErrorCode
from coldlog.runtime.spark.arrow_frames import frame_of
from coldlog.tables.delta.locations import folder_of_spark, why_unwritable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coldlog.runtime.settings import Settings

STANDARD_OUTPUT = "-"
_LONGEST_NAME_BYTES = 255

LATEST, EARLIEST = -1, -2
"""Spark's Kafka source takes these numbers for "from the end" and "from the beginning"."""


def write_json_lines(answers: pa.Table, path: str) -> None:
    """Write one JSON object per line, with the columns of the answers; NULL is null."""
    _write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in answers.to_pylist()))


def starting_offsets(answers: pa.Table) -> str:
    """Return `{"topic": {"0": 23}}` for `startingOffsets`, from answers of `LIST_OFFSETS_SCHEMA`.

    A partition without a record that is late enough starts at its end (-1). If only the archive was searched, and the
    time is later than the archive, the partition starts where the archive ends: a later record may not be archived yet.

    Raise `UsageError` for a partition that is asked for twice or unknown to the archive: the JSON has no form for it.
    """
    by_topic: dict[str, dict[str, int]] = {}
    for row in answers.to_pylist():
        where = f"{row['topic']}-{row['partition']}"
        is_local = row["error"] == ErrorCode.LOCAL_REQUIRED.name and row["timestamp_ms"] >= LATEST
        if row["error"] != ErrorCode.NONE.name and not is_local:
            raise UsageError(f"no starting offset for {where}: {row['error']}")
        offsets = by_topic.setdefault(row["topic"], {})
        if str(row["partition"]) in offsets:
            raise UsageError(f"{where} is asked for twice; starting offsets need one timestamp per partition")
        offsets[str(row["partition"])] = _starting_offset(row, is_local=is_local)
    return json.dumps(by_topic, ensure_ascii=False)


def _starting_offset(row: dict[str, Any], *, is_local: bool) -> int:
    if row["offset"] is not None:
        return int(row["offset"])
    if not is_local or row["timestamp_ms"] == LATEST:
        return LATEST
    return EARLIEST if row["local_start_offset"] is None else int(row["local_start_offset"])


def write_starting_offsets(answers: pa.Table, path: str) -> None:
    _write_whole(path, starting_offsets(answers) + "\n")


def write_table(answers: pa.Table, location: str, spark: SparkSession) -> None:
    """Replace the Delta table at `location` and its columns: the answers of the other job have more columns."""
    rows = frame_of(spark, answers).write.format("delta").mode("overwrite")
    rows.option("overwriteSchema", "true").save(location)


def check_table_target(place: str, settings: Settings) -> None:
    """Raise `UsageError` if no Delta table can be written to a folder of this machine; write nothing."""
    folder = folder_of_spark(place, settings)
    why = None if folder is None else why_unwritable(folder)
    if why is not None:
        raise UsageError(f"cannot write the answers to {place!r}: {why}")


def check_target(path: str) -> None:
    """Raise `UsageError` if answers cannot be written to `path`; write nothing."""
    if path == STANDARD_OUTPUT:
        return
    try:
        if _is_written_in_place(path):
            folder = path
        else:
            target = Path(os.path.realpath(path))
            if len(os.fsencode(target.name)) > _LONGEST_NAME_BYTES:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            if not target.parent.exists():
                raise ValueError(f"no such folder: {target.parent}; make it, or correct the path")
            if not target.parent.is_dir():
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            folder = str(target.parent)
        if not os.access(folder, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as refused:
        raise _refusal(path, refused) from refused


def _write_whole(path: str, text: str) -> None:
    """Replace a file at once, also behind a link; write to a device or a FIFO as it is."""
    if path == STANDARD_OUTPUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        if _is_written_in_place(path):
            Path(path).write_text(text, encoding="utf-8")
            return
        target = Path(os.path.realpath(path))
        unfinished = target.with_name(f".coldlog-answers.{os.getpid()}.tmp")
        try:
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as refused:
        raise _refusal(path, refused) from refused


def _is_written_in_place(path: str) -> bool:
    """True for a device, a FIFO and the like; a folder is refused."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    return not stat.S_ISREG(mode)


def _refusal(path: str, refused: OSError | ValueError) -> UsageError:
    why = refused.strerror if isinstance(refused, OSError) else refused
    return UsageError(f"cannot write the answers to {path!r}: {why}")
