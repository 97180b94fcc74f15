"""Record what the outcome of a run depends on, so that a later run can find out that nothing has changed.

A witness maps the name of each thing to its state, as text: the code, the settings, the ids of decryption keys, the
endpoint of S3, the log start offsets, the metadata topic, the archive, and the version of every table. A run of
run_pipeline that succeeds writes it to its row in `job_runs`. While all states are the same, a run reads the same and
finds its own work done (`preflight`).

States are those that the run has read, or older ones, never newer: a change during a run is seen by the next run.
Versions of tables that only the holder of the lock writes are taken at the end.

Of a metadata topic that brokers have, the state is its id and the ends of its partitions; of a Delta table of its
records, the table's id, version and time. Log start offsets that brokers answer are a state, too.

A run that succeeds leaves no report of damage. One that a lookup made meanwhile is a change.

No step depends on the clock, except the choice of directories that are listed again (`due_listings`). What only time or
a repetition changes has no witness, and the next run does every step: segments that are tried again, a validation,
directories that could not be listed, damaged metadata partitions, segments that are pending, and rows of superseded
builds, which the next run removes. So does a run after one that read events from a Delta table whose version only Spark
can tell: on HDFS, or with commits that a catalog keeps.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

import coldlog
from coldlog.archive.layouts.aiven_keys import list_key_ids
from coldlog.archive.stores.s3_environment import s3_endpoint
from coldlog.indexing.digests import digest_of
from coldlog.model.states import IndexStatus
from coldlog.runtime.installation import default_jar_directory
from coldlog.runtime.settings import Settings
from coldlog.tables.damage_reports import read_damage_reports
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.list_offsets_expirations import LIST_OFFSETS_EXPIRATIONS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.tier.tier_partitions import TIER_PARTITIONS
from coldlog.tables.delta.files.table_files import list_table_files, read_if_small, read_whole_file, table_state
from coldlog.tables.delta.locations import bucket_and_prefix, local_folder, table_location
from coldlog.tables.delta.log_check import check_log
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tables.delta.table_storage import delta_storage_options
from coldlog.tiering.expiry.supplied_log_starts import LiveLogStarts, LogStarts

Witness = Mapping[str, str]

KEY = "witness"
"""The key of the witness in the summary of a run."""
ARCHIVE, EVENTS, LOG_STARTS = "the archive", "the metadata topic", "the log start offsets"
REPORTS = "the reports of damage"
NOTHING = "none"
_SWITCH = "pipeline.skip_unchanged"
_WRITTEN_WITHOUT_LOCK = (JOB_RUNS, LIST_OFFSETS_EXPIRATIONS)
"""No step reads these tables."""
_MOST_OF_PARTITIONS = 1_000_000
"""So many segments of a limited run are looked through together."""
_TABLES_AT_ONCE = 8
"""Each takes some requests to the store, one after another."""


def may_be_unchanged(settings: Settings) -> bool:
    """Whether a run with these settings depends only on what a witness names."""
    warehouse = settings.warehouse
    has_lock = bucket_and_prefix(settings.warehouse_uri) is not None or local_folder(settings.warehouse_uri) is not None
    registers_names = warehouse.persistent_functions or settings.spark.get("spark.sql.catalogImplementation") == "hive"
    is_repeated = settings.build.retry_quarantined or settings.validation.after_build
    is_of_now = warehouse.as_of is None
    return is_of_now and has_lock and not registers_names and not is_repeated


def read_surroundings(settings: Settings) -> dict[str, str]:
    """Read what a run depends on beside the tables and what it reads; call it before the run reads anything."""
    values = {key: value for key, value in settings.items() if key != _SWITCH}
    uris = (settings.archive_uri, settings.warehouse_uri, settings.metadata.uri or "")
    return {
        "the code": _code_digest(),
        "the decryption keys": ",".join(sorted(list_key_ids())),
        "the endpoint of S3": digest_of(str(s3_endpoint())) if any(map(bucket_and_prefix, uris)) else NOTHING,
        "table tier_partitions": _tier_state(settings.warehouse_uri),
        "the settings": digest_of(values),
    }


def witness_of_run(
    settings: Settings,
    surroundings: Witness,
    summary: Mapping[str, Any],
    partitions: frozenset[tuple[str, int]] | None = None,
) -> Witness | None:
    """Return the witness of a run from the summaries of its steps; None if the next run has to do every step.

    `partitions` are those that the run was limited to, as nothing else had changed since the last witness.
    """
    scan, metadata = summary["scan"], summary["metadata"] or {}
    events = metadata.get("source_digest") if metadata else NOTHING
    is_in_doubt = (
        not may_be_unchanged(settings)
        or events is None
        or scan["unlisted_count"]
        or metadata.get("damaged_partition_count")
        or metadata.get("lost_partitions")
        or has_open_work(settings.warehouse_uri, partitions)
    )
    if is_in_doubt:
        return None
    return {
        **surroundings,
        ARCHIVE: scan["listing_digest"],
        EVENTS: events,
        LOG_STARTS: scan["log_starts_digest"],
        REPORTS: NOTHING,
        **read_table_states(settings.warehouse_uri),
    }


def read_table_states(uri: str) -> dict[str, str]:
    """Read id and version of each table that only the holder of the lock writes, after a check of its log."""
    storage = delta_storage_options(uri)
    with ThreadPoolExecutor(_TABLES_AT_ONCE) as reads:
        states = list(reads.map(partial(_table_state, uri, storage), ALL_TABLES))
    return {
        f"table {table.name}": state
        for table, state in zip(ALL_TABLES, states, strict=True)
        if table not in _WRITTEN_WITHOUT_LOCK
    }


def reports_state(uri: str) -> str:
    """How many reports of damage wait for a build."""
    return str(len(read_damage_reports(uri)) or NOTHING)


def _table_state(uri: str, storage: Mapping[str, str] | None, table: TableDefinition) -> str:
    location = table_location(uri, table.name)
    check_log(location)
    return table_state(location, table, storage=storage)


def log_starts_digest(supplied: LogStarts, live: LiveLogStarts | None = None) -> str:
    """A digest of the log start offsets of a file, and of those that brokers answered, if they were asked."""
    answered = [] if live is None else [sorted(live.log_starts.items()), live.left_out_topics]
    return digest_of([sorted(supplied.items()), answered])


def find_change(before: Witness, now: Witness) -> str | None:
    """Return the name of something in `now` that has another state than in `before`; None if nothing has."""
    return next((name for name, state in now.items() if before.get(name) != state), None)


def _tier_state(uri: str) -> str:
    version = SmallTable(uri=uri, table=TIER_PARTITIONS).version()
    return NOTHING if version is None else str(version)


def has_open_work(uri: str, partitions: frozenset[tuple[str, int]] | None = None) -> bool:
    """Whether segments of the partitions (None: of all) are pending, or rows of superseded builds are still there."""
    location, columns = table_location(uri, SEGMENTS.name), ("index_status", "superseded_build_numbers")
    if partitions is not None:
        rows = read_if_small(location, SEGMENTS, _MOST_OF_PARTITIONS, columns=columns, partitions=partitions)
        if rows is not None:
            return _is_open(rows)
    files = list_table_files(location, SEGMENTS, [])
    return any(_is_open(read_whole_file(files.location, path, SEGMENTS, columns)) for path in files.paths)


def _is_open(rows: pa.Table) -> bool:
    is_pending = pc.equal(rows["index_status"], IndexStatus.PENDING.value)
    is_superseded = pc.greater(pc.list_value_length(rows["superseded_build_numbers"]), 0)
    return bool(pc.any(is_pending).as_py() or pc.any(is_superseded).as_py())


def _code_digest() -> str:
    """A digest of coldlog's files, the versions of all packages, and the jars; never the same if there are no files."""
    library = os.path.dirname(coldlog.__file__)
    folders = [(folder, names) for folder, _, names in os.walk(library) if os.path.basename(folder) != "__pycache__"]
    files = sorted(os.path.join(folder, name) for folder, names in folders for name in names)
    digest, count = hashlib.blake2b(digest_size=16), 0
    for file in filter(os.path.isfile, files):
        with open(file, "rb", buffering=0) as opened:
            content = opened.read()
        digest.update(f"{file[len(library) :]} {len(content)}\n".encode() + content)
        count += 1
    if not count:
        return uuid4().hex
    packages = [name for name in os.listdir(sysconfig.get_path("purelib")) if name.endswith(".dist-info")]
    jars = [(jar.name, jar.stat().st_size) for jar in default_jar_directory().glob("*.jar")]
    return digest_of([digest.hexdigest(), platform.python_version(), sorted(packages), sorted(jars)])
