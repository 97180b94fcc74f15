"""Create a Delta table, append rows or files to it and change a few rows, without Spark.

A change reads the newest version with delta-rs, writes one file with the new rows and those of the files that it
replaces, and puts the next version if it does not exist (`log_files`). If another writer has put that version first,
the change starts again from the newest one. So it never conflicts with what it has read. delta-rs itself refuses to
write clustered tables.

The order is: the file, the commit, the version checksum (`<version>.crc`), and at each `delta.checkpointInterval` a
checkpoint. A killed process leaves a file that nobody reads, or a complete commit. What follows the commit only saves
other readers work: without the version checksum, Delta counts the files of a table by a query. It is derived from the
newest version checksum and the commits after it.

A table with other features than `_FEATURES`, with partitions, or with other columns than its definition is left to
Spark: nothing is written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from coldlog.archive.stores.s3_client import S3Options
from coldlog.errors import ColdlogError, RetriableError
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.files.data_files import DataFile, DataFileWriter
from coldlog.tables.delta.files.table_files import open_table
from coldlog.tables.delta.locations import bucket_and_prefix, local_folder
from coldlog.tables.delta.log_check import check_log, create_checkpoint
from coldlog.tables.delta.log_files import NO_LINKS, LogFiles, open_log, pause
from coldlog.tables.delta.row_edits import Change, ChangePlan, Row, plan_change

Action = dict[str, Any]

_FEATURES = frozenset({"appendOnly", "invariants", "clustering", "domainMetadata"})
_CLUSTERING = "delta.clustering"
_DEFAULTS = {
    "delta.enableDeletionVectors": "false",
    "delta.enableRowTracking": "false",
    "delta.enableChangeDataFeed": "false",
    "delta.enableInCommitTimestamps": "false",
    "delta.columnMapping.mode": "none",
    "delta.checkpointPolicy": "classic",
}
"""The properties that coldlog's sessions give every table; other values need features of Delta."""
_WRITER_VERSIONS = (1, 2, 7)
"""Versions 3 to 6 imply features that are not in `_FEATURES`."""
_ATTEMPTS = 50
_ENGINE = "coldlog"
_CHECKPOINT_INTERVAL = "10"
_FACTS = ("metadata", "protocol", "domainMetadata", "numMetadata", "numProtocol")
_LISTED_FILES = 50
"""Delta lists the files in a version checksum up to this number."""
_LISTED_COMMITS = 100
_APPEND = {"mode": "Append", "partitionBy": "[]"}
"""The parameters of an operation that only adds rows."""


_Result = TypeVar("_Result")


class _LostRaceError(Exception):
    """Another writer has put the version."""


class LaterWriterError(ColdlogError):
    """The table has a commit of the same application with the same number or a higher one."""


def commit_rows(
    location: str, table: TableDefinition, change: Change, transaction: tuple[str, int] | None = None
) -> int | None:
    """Make the change in one commit, or none if nothing changes; return the number of changed rows.

    None: the table, the file system or the number of rows to read needs Spark, and nothing was written. `transaction`
    is an application and its number; `LaterWriterError` if the table has that number of the application or a higher
    one.
    """
    log = open_log(location)
    return _repeated(location, lambda: _commit_once(log, location, table, change, transaction))


def create_table(location: str, table: TableDefinition, schema: str, properties: Mapping[str, str]) -> bool:
    """Create an empty table, unless another writer creates it first; False if that needs Spark.

    `schema` is the JSON of its columns, as Spark writes it; `properties` are the table's own and the defaults of the
    session. A default that is not in `_DEFAULTS` may need a feature that this module does not know.
    """
    if local_folder(location) is None and bucket_and_prefix(location) is None:
        return False
    if any(_DEFAULTS.get(key, value) != value or key not in _DEFAULTS for key, value in properties.items()):
        return False
    log, now_ms = open_log(location), time.time_ns() // 1_000_000
    configuration = {**properties, **table.all_properties}
    described = {"description": table.comment, "isManaged": "false", "properties": _dump(configuration)}
    columns = {"partitionBy": "[]", "clusterBy": json.dumps(table.clustered_by)}
    info = _commit_info(-1, "CREATE TABLE", columns | described, now_ms)
    del info["readVersion"]
    metadata = {
        "id": str(uuid4()),
        "description": table.comment,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": now_ms,
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": sorted(_FEATURES)}
    clustering = {"clusteringColumns": [[name] for name in table.clustered_by], "domainName": _CLUSTERING}
    domain = {"domain": _CLUSTERING, "configuration": _dump(clustering), "removed": False}
    actions = [
        {"commitInfo": info | {"isBlindAppend": True}},
        {"metaData": metadata},
        {"protocol": protocol},
        {"domainMetadata": domain},
    ]
    try:
        if not _put(log, location, 0, actions):
            return False
    except _LostRaceError:
        return True
    facts = {"metadata": metadata, "protocol": protocol, "domainMetadata": [domain], "numMetadata": 1, "numProtocol": 1}
    none = {"tableSizeBytes": 0, "numFiles": 0, "setTransactions": [], "allFiles": []}
    with suppress(OSError, ColdlogError):
        log.replace(_name(0, "crc"), _dump({"txnId": info["txnId"], **none, **facts}).encode())
    return True


def _repeated(location: str, commit: Callable[[], _Result]) -> _Result:
    """Make a commit, again with a pause if another writer was first."""
    for attempt in range(_ATTEMPTS):
        with suppress(_LostRaceError):
            return commit()
        if attempt:
            pause(attempt)
    raise RetriableError(f"other jobs changed table {location} in all {_ATTEMPTS} attempts; run again")


def _commit_once(
    log: LogFiles,
    location: str,
    table: TableDefinition,
    change: Change,
    transaction: tuple[str, int] | None,
) -> int | None:
    """Make the change on top of the newest version; `_LostRaceError` if another writer puts the next one first."""
    check_log(location)
    delta = open_table(location, table)
    if not _is_plain(delta, table):
        return None
    if transaction is not None:
        _require_later(delta, location, *transaction)
    actions = None if change.is_blind else pa.table(delta.get_add_actions(flatten=True))
    plan = plan_change(actions, location, table, change)
    if plan is None:
        return None
    if not plan.replaced and not plan.rows.num_rows:
        return 0
    file = write_file(location, table, plan.rows) if plan.rows.num_rows else None
    version = delta.version() + 1
    if not _put(log, location, version, _actions(version - 1, change, plan, file, transaction)):
        return None
    _follow(log, location, table, version, delta)
    return plan.changed_count


def commit_files(
    location: str, table: TableDefinition, files: Sequence[DataFile], numbers: Sequence[tuple[str, int]]
) -> int | None:
    """Commit the rows of files that are at the table's location, and numbers of applications; return the version.

    Without files, only the numbers are committed. None: as in `commit_rows`. `LaterWriterError` if the table has one of
    these numbers, or a higher one.
    """
    log = open_log(location)

    def commit() -> int | None:
        check_log(location)
        delta = open_table(location, table)
        if not _is_plain(delta, table):
            return None
        for application, number in numbers:
            _require_later(delta, location, application, number)
        now_ms, version = time.time_ns() // 1_000_000, delta.version() + 1
        operation, parameters = ("WRITE", _APPEND) if files else ("SET TRANSACTION", {})
        info = _commit_info(version - 1, operation, parameters, now_ms) | {"isBlindAppend": True}
        actions = [{"commitInfo": info}, *_transactions(numbers, now_ms), *map(_added, files)]
        if not _put(log, location, version, actions):
            return None
        _follow(log, location, table, version, delta)
        return version

    return _repeated(location, commit)


def commit_rearranged(
    location: str,
    table: TableDefinition,
    replaced: Collection[str],
    files: Sequence[DataFile],
    transaction: tuple[str, int] | None = None,
) -> bool:
    """Replace files, named by their paths, by files with the same rows; False: as None in `commit_rows`, or a file is
    no longer part of the table. Errors are those of `commit_rows`."""
    log = open_log(location)

    def commit() -> bool:
        check_log(location)
        delta = open_table(location, table)
        stored = {str(row["path"]): row for row in pa.table(delta.get_add_actions(flatten=True)).to_pylist()}
        if not _is_plain(delta, table) or not set(replaced) <= stored.keys():
            return False
        if transaction is not None:
            _require_later(delta, location, *transaction)
        now_ms, version = time.time_ns() // 1_000_000, delta.version() + 1
        info = _commit_info(version - 1, "OPTIMIZE", {"predicate": "[]"}, now_ms) | {"isBlindAppend": False}
        actions = [{"commitInfo": info}, *_transactions([] if transaction is None else [transaction], now_ms)]
        moved = [*map(_added, files), *(_removed(stored[path], now_ms) for path in replaced)]
        # The rows are the same: who follows changes need not look.
        actions += [{kind: action | {"dataChange": False}} for each in moved for kind, action in each.items()]
        is_put = _put(log, location, version, actions)
        if is_put:
            _follow(log, location, table, version, delta)
        return is_put

    return _repeated(location, commit)


def _put(log: LogFiles, location: str, version: int, actions: Sequence[Action]) -> bool:
    """Put a commit; False if the file system has no links, `_LostRaceError` if another writer has put the version."""
    try:
        is_put = log.put(_name(version, "json"), _lines(actions))
    except OSError as failed:
        if failed.errno in NO_LINKS:
            return False
        raise RetriableError(f"the log of {location} cannot be written: {failed.strerror}; run again") from failed
    if not is_put:
        raise _LostRaceError
    return True


def _is_plain(delta: DeltaTable, table: TableDefinition) -> bool:
    """Whether this module knows all that a writer of the table must do."""
    protocol, metadata = delta.protocol(), delta.metadata()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    if protocol.min_reader_version != 1 or protocol.min_writer_version not in _WRITER_VERSIONS:
        return False
    is_append_only = metadata.configuration.get("delta.appendOnly") == "true"
    if not features <= _FEATURES or metadata.partition_columns or is_append_only:
        return False
    stored = pa.schema(delta.schema())
    required = {column.name for column in table.columns if column.required}
    return (
        {each.name: each.type for each in stored} == {each.name: each.type for each in table.arrow_schema}
        and all(each.nullable or each.name in required for each in stored)
        and not any("delta.invariants" in each.metadata for each in delta.schema().fields)
    )


def _require_later(delta: DeltaTable, location: str, application: str, number: int) -> None:
    newest = delta.transaction_version(application)
    if newest is not None and newest >= number:
        raise LaterWriterError(
            f"a commit to {location} was not made: the table has number {newest} of {application}, and this commit "
            f"has {number}"
        )


def write_file(location: str, table: TableDefinition, rows: pa.Table) -> DataFile:
    """Write a file of the rows, in the order of the clustering; a commit must add it."""
    # In order, so that row groups have few partitions each.
    columns = rows.sort_by([(name, "ascending") for name in table.clustered_by]).combine_chunks()
    writer = DataFileWriter(table=table)
    try:
        writer.add({name: columns.column(name).chunk(0) for name in table.column_names})
        return writer.finish(local_folder(location) or location, S3Options())
    finally:
        writer.close()


def _actions(
    version: int,
    change: Change,
    plan: ChangePlan,
    file: DataFile | None,
    transaction: tuple[str, int] | None,
) -> list[Action]:
    """The lines of the commit, as Delta's protocol names them."""
    now_ms = time.time_ns() // 1_000_000
    operation = "UPDATE" if plan.replaced else "WRITE"
    parameters = {"predicate": "[]"} if plan.replaced else _APPEND
    info = _commit_info(version, operation, parameters, now_ms) | {
        # Rows that were looked at decide, also if none matched.
        "isBlindAppend": change.is_blind,
        "operationMetrics": {
            "numOutputRows": str(plan.rows.num_rows),
            "numOutputBytes": str(0 if file is None else file.size_bytes),
        },
    }
    actions: list[Action] = [{"commitInfo": info}]
    if transaction is not None:
        actions += _transactions([transaction], now_ms)
    if file is not None:
        actions.append(_added(file))
    return actions + [_removed(each, now_ms) for each in plan.replaced]


def _removed(file: Row, now_ms: int) -> Action:
    removed = {"path": file["path"], "deletionTimestamp": now_ms, "dataChange": True}
    full = {"extendedFileMetadata": True, "partitionValues": {}, "size": file["size_bytes"]}
    return {"remove": removed | full | {"stats": _dump({"numRecords": file["num_records"]})}}


def _added(file: DataFile) -> Action:
    place = {"path": file.path, "partitionValues": {}, "size": file.size_bytes}
    return {"add": place | {"modificationTime": file.modified_ms, "dataChange": True, "stats": file.statistics}}


def _commit_info(version: int, operation: str, parameters: Action, now_ms: int) -> Action:
    return {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": parameters,
        "readVersion": version,
        "isolationLevel": "Serializable",
        "engineInfo": _ENGINE,
        "txnId": str(uuid4()),
    }


def _transactions(numbers: Sequence[tuple[str, int]], now_ms: int) -> list[Action]:
    return [
        {"txn": {"appId": application, "version": number, "lastUpdated": now_ms}} for application, number in numbers
    ]


def _follow(log: LogFiles, location: str, table: TableDefinition, version: int, before: DeltaTable) -> None:
    """Write what others need after a commit on top of `before`, whose metadata it did not change. It is made, so a
    failure here does not fail it."""
    with suppress(OSError, ColdlogError):
        checksum = _derive_checksum(log, version)
        if checksum is not None:
            log.replace(_name(version, "crc"), _dump(checksum).encode())
    with suppress(OSError, ColdlogError, DeltaError, CommitFailedError):
        interval = int(before.metadata().configuration.get("delta.checkpointInterval", _CHECKPOINT_INTERVAL))
        if version % interval:
            return
        delta = open_table(location, table)
        if delta.version() == version:
            create_checkpoint(delta, location)


def _derive_checksum(log: LogFiles, version: int) -> Action | None:
    """Derive the version checksum from the newest one before it and the commits since; None if these are not all of
    this module, which never adds a file twice."""
    commits: list[list[Action]] = []
    for before in range(version - 1, max(-1, version - _LISTED_COMMITS), -1):
        content = log.read(_name(before + 1, "json"))
        commits.append([json.loads(line) for line in (content or b"").splitlines()])
        if not commits[-1] or commits[-1][0].get("commitInfo", {}).get("engineInfo") != _ENGINE:
            return None
        stored = log.read(_name(before, "crc"))
        if stored is not None:
            checksum: Action = json.loads(stored)
            for actions in reversed(commits):
                checksum = _advance(checksum, actions)
            return checksum
    return None


def _advance(before: Action, actions: Sequence[Action]) -> Action:
    """The version checksum after a commit of this module. Delta can do without the fields that are left out."""
    added = [action["add"] for action in actions if "add" in action]
    removed = {action["remove"]["path"]: action["remove"]["size"] for action in actions if "remove" in action}
    after = {name: before[name] for name in _FACTS if name in before}
    after["txnId"] = actions[0]["commitInfo"]["txnId"]
    after["numFiles"] = before["numFiles"] + len(added) - len(removed)
    after["tableSizeBytes"] = before["tableSizeBytes"] + sum(file["size"] for file in added) - sum(removed.values())
    if "setTransactions" in before:
        new = [action["txn"] for action in actions if "txn" in action]
        renewed = {each["appId"] for each in new}
        after["setTransactions"] = [each for each in before["setTransactions"] if each["appId"] not in renewed] + new
    if "allFiles" in before and after["numFiles"] <= _LISTED_FILES:
        kept = [file for file in before["allFiles"] if file["path"] not in removed]
        after["allFiles"] = kept + [file | {"dataChange": False} for file in added]
    return after


def _name(version: int, ending: str) -> str:
    return f"{version:020d}.{ending}"


def _lines(actions: Sequence[Action]) -> bytes:
    return "".join(f"{_dump(action)}\n" for action in actions).encode()


def _dump(value: Action) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
