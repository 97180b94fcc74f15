"""Open what copy_segments and expire_segments share: event log, archive, schedule, assigned partitions."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from coldlog.archive.layouts.local_tiered_storage import find_partition_directory
from coldlog.archive.metadata_log_writer import MARKER, has_marker, holding_jobs_lock, holding_schedule_lock
from coldlog.archive.open_archive import directory_of, open_archive_for_writing
from coldlog.archive.stores.object_writer import WritableStore
from coldlog.archive.stores.s3_location import is_s3_uri
from coldlog.archive.stores.unreachable_store import UnreachableStore
from coldlog.brokers.kafka_client import open_cluster
from coldlog.errors import RetriableError, UsageError
from coldlog.runtime.installation import ROOT
from coldlog.runtime.open_layout import decode_limits, s3_options
from coldlog.runtime.settings import MetadataSource, Settings
from coldlog.tables.delta.locations import spark_uri
from coldlog.tiering.event_logs import ReadableEventLog, directory_event_log, topic_event_log
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.tier_assignments import LEADER_OF_ALL, Assignments
from coldlog.tiering.tier_schedule import ScheduleOptions, TierSchedule, tier_schedule_table

NOTHING_DUE = "no partition is due, or other runs hold those that are; use --all to ignore the schedule's times"
"""Printed by a run that processed no partition."""


@contextmanager
def opened_events(
    settings: Settings,
    archive: WritableStore,
    *,
    runs_alone: bool | None,
    job: str,
    schedule: TierSchedule | None = None,
) -> Iterator[ReadableEventLog]:
    """Open the event log of this archive that the settings name. `runs_alone`: True forbids any other copy job at the
    same time, False allows those that share the log, None skips the check. `schedule` forbids jobs that use another
    schedule."""
    metadata = settings.metadata
    if metadata.source is MetadataSource.TOPIC:
        if metadata.bootstrap_servers is None:
            raise UsageError("metadata.source = topic needs metadata.bootstrap_servers: give --set with host:port")
        cluster = open_cluster(metadata.bootstrap_servers, metadata.timeout_ms, metadata.client_config)
        with topic_event_log(cluster, metadata.topic) as events:
            yield events
        return
    if metadata.source is not MetadataSource.LOG_SEGMENTS or metadata.uri is None or is_s3_uri(metadata.uri):
        raise UsageError(
            f"{job} needs a log for its events: give --set metadata.uri=DIRECTORY (a local directory), or "
            "--set metadata.source=topic for a cluster's metadata topic"
        )
    directory = directory_of(metadata.uri)
    _require_begun(directory, archive)
    with (
        directory_event_log(
            directory, topic=metadata.topic, partition_count=metadata.partitions, limits=decode_limits(settings)
        ) as log,
        nullcontext() if runs_alone is None else holding_jobs_lock(directory, is_shared=not runs_alone),
        nullcontext() if schedule is None else holding_schedule_lock(directory, _location_of(schedule)),
    ):
        yield log


def _location_of(schedule: TierSchedule) -> str:
    uri = schedule.table.uri
    return uri if is_s3_uri(uri) or uri.startswith("s3a://") else os.path.realpath(uri)


def _require_begun(directory: str, archive: WritableStore) -> None:
    """Raise `RetriableError` if the log does not exist and the archive has partitions, or cannot be listed. Then the
    log is probably on a disk that is not mounted, and a new log would copy everything again."""
    if has_marker(directory) or not any(find_partition_directory(name) for name in archive.list_directories("")):
        return
    raise RetriableError(
        f"{directory} has no event log, but the archive at {archive.uri} has partitions: check the mount and "
        f"metadata.uri. To begin a new log that knows none of them, make an empty file {MARKER} in the directory"
    )


def open_tier_archive(settings: Settings, *, may_begin: bool = True) -> WritableStore:
    """Open the archive at `archive.uri`. If it does not answer now, return a store that raises this for each partition.
    A directory is created if it is missing, but not if the event log exists: then the disk is probably not mounted."""
    uri, metadata = settings.archive_uri, settings.metadata
    if not is_s3_uri(uri) and Path(directory_of(uri)).resolve().is_relative_to(ROOT / "tests"):
        raise UsageError(f"{uri} is a read-only sample of this repository; give --set archive.uri=DIRECTORY")
    has_log = metadata.uri is not None and not is_s3_uri(metadata.uri) and has_marker(directory_of(metadata.uri))
    try:
        return open_archive_for_writing(uri, s3_options(settings), may_begin=may_begin and not has_log)
    except RetriableError as failed:
        return UnreachableStore(uri=uri, why=str(failed))


def open_schedule(settings: Settings, clock: Clock, *, ignores_times: bool, is_required: bool) -> TierSchedule | None:
    """Open the schedule in the warehouse. Return None if there is none and the settings do not ask for one."""
    tier, uri = settings.tier, settings.warehouse.uri
    if uri is None:
        if is_required or tier.scheduled:
            raise UsageError("the tier's schedule is a table of the warehouse: give --set warehouse.uri=DIRECTORY")
        return None
    if settings.warehouse.as_of is not None:
        raise UsageError("warehouse.as_of opens the warehouse read-only; unset it to copy or expire segments")
    table = tier_schedule_table(_warehouse_location(uri))
    if not (is_required or tier.scheduled or table.exists()):
        return None
    options = ScheduleOptions(
        holder=f"{socket.gethostname()}, process {os.getpid()}, {uuid.uuid4().hex[:8]}",
        broker_id=settings.copy.broker_id,
        process_interval_ms=tier.process_interval_ms,
        retry_interval_ms=tier.retry_interval_ms,
        lease_ms=tier.lease_ms,
        ignores_times=ignores_times,
    )
    return TierSchedule(table=table, clock=clock, options=options)


def _warehouse_location(uri: str) -> str:
    """Return the uri in the form that the table writer takes."""
    return spark_uri(uri) if is_s3_uri(uri) or uri.startswith("s3a://") else directory_of(uri)


def read_assignments(settings: Settings) -> Assignments:
    """Read the file that `tier.assignments` names."""
    uri = settings.tier.assignments
    return LEADER_OF_ALL if uri is None else Assignments.read(directory_of(uri))


def listed(text: str) -> tuple[str, ...]:
    """Split a list that is separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
