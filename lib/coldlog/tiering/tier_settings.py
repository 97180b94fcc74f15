"""tier_settings: what do the jobs of the tier take from the settings alike?

The event log, the schedule, the partitions of this host.
"""

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
from coldlog.runtime.open_layout import decode_limits, s3_options
from coldlog.runtime.settings import MetadataSource, Settings
from coldlog.runtime.settings_sources import REPOSITORY
from coldlog.tables.delta.locations import spark_uri
from coldlog.tiering.event_logs import ReadableEventLog, directory_event_log, topic_event_log
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.tier_assignments import LEADER_OF_ALL, Assignments
from coldlog.tiering.tier_schedule import ScheduleOptions, TierSchedule, tier_schedule_table

NOTHING_DUE = "no partition is due, or other runs hold those that are; --all ignores the times"
"""What a run tells that took none."""


@contextmanager
def opened_events(
    settings: Settings,
    archive: WritableStore,
    *,
    runs_alone: bool | None,
    job: str,
    schedule: TierSchedule | None = None,
) -> Iterator[ReadableEventLog]:
    """The log of events that the settings name, of this archive; `runs_alone`: no other job copies with it meanwhile;
    None: any may. With a `schedule` none that keeps to another one runs meanwhile."""
    own = settings.metadata
    if own.source is MetadataSource.TOPIC:
        if own.bootstrap_servers is None:
            raise UsageError("metadata.source = topic needs metadata.bootstrap_servers: give --set with host:port")
        cluster = open_cluster(own.bootstrap_servers, own.timeout_ms, own.client_config)
        with topic_event_log(cluster, own.topic) as events:
            yield events
        return
    if own.source is not MetadataSource.LOG_SEGMENTS or own.uri is None or is_s3_uri(own.uri):
        raise UsageError(
            f"{job} announces what it does in a directory of this machine, --set metadata.uri=DIRECTORY, or "
            "in a cluster's metadata topic, --set metadata.source=topic"
        )
    directory = directory_of(own.uri)
    _require_begun(directory, archive)
    with (
        directory_event_log(
            directory, topic=own.topic, partition_count=own.partitions, limits=decode_limits(settings)
        ) as log,
        nullcontext() if runs_alone is None else holding_jobs_lock(directory, is_shared=not runs_alone),
        nullcontext() if schedule is None else holding_schedule_lock(directory, _place_of(schedule)),
    ):
        yield log


def _place_of(schedule: TierSchedule) -> str:
    uri = schedule.table.uri
    return uri if is_s3_uri(uri) or uri.startswith("s3a://") else os.path.realpath(uri)


def _require_begun(directory: str, archive: WritableStore) -> None:
    """A log of events is begun behind its archive, not before that can be listed: where there are partitions already,
    the log is on a disk that is not mounted, and all would be copied again."""
    if has_marker(directory) or not any(find_partition_directory(each) for each in archive.list_directories("")):
        return
    raise RetriableError(
        f"{directory} holds no log of events, and the archive at {archive.uri} holds partitions: is metadata.uri "
        f"mounted? to begin another log, which knows nothing of them, make an empty file {MARKER} in the directory"
    )


def open_tier_archive(settings: Settings, *, may_begin: bool = True) -> WritableStore:
    """The archive at `archive.uri`; one that does not answer now says so of each partition. One in a directory is made
    if need be, unless segments of it may have been announced: then its disk is not mounted."""
    uri, own = settings.archive_uri, settings.metadata
    if not is_s3_uri(uri) and Path(directory_of(uri)).resolve().is_relative_to(REPOSITORY / "tests"):
        raise UsageError(f"{uri} is a sample of this repository, which is only read; give --set archive.uri=DIRECTORY")
    is_first = may_begin and (own.uri is None or is_s3_uri(own.uri) or not has_marker(directory_of(own.uri)))
    try:
        return open_archive_for_writing(uri, s3_options(settings), may_begin=is_first)
    except RetriableError as failed:
        return UnreachableStore(uri=uri, why=str(failed))


def open_schedule(settings: Settings, clock: Clock, *, ignores_times: bool, is_required: bool) -> TierSchedule | None:
    """The schedule below `warehouse.uri`; None where none was ever kept there, and it is not wanted."""
    own, uri = settings.tier, settings.warehouse.uri
    if uri is None:
        if is_required or own.scheduled:
            raise UsageError("the schedule of the tier is a table: give --set warehouse.uri=DIRECTORY")
        return None
    if settings.warehouse.as_of is not None:
        raise UsageError("a warehouse as of the past is only read; unset warehouse.as_of to run the tier")
    table = tier_schedule_table(_warehouse_location(uri))
    if not (is_required or own.scheduled or table.exists()):
        return None
    options = ScheduleOptions(
        holder=f"{socket.gethostname()}, process {os.getpid()}, {uuid.uuid4().hex[:8]}",
        broker_id=settings.copy.broker_id,
        process_interval_ms=own.process_interval_ms,
        retry_interval_ms=own.retry_interval_ms,
        lease_ms=own.lease_ms,
        ignores_times=ignores_times,
    )
    return TierSchedule(table=table, clock=clock, options=options)


def _warehouse_location(uri: str) -> str:
    """As the tables' writer takes it."""
    return spark_uri(uri) if is_s3_uri(uri) or uri.startswith("s3a://") else directory_of(uri)


def read_assignments(settings: Settings) -> Assignments:
    """What `tier.assignments` says."""
    uri = settings.tier.assignments
    return LEADER_OF_ALL if uri is None else Assignments.read(directory_of(uri))


def listed(text: str) -> tuple[str, ...]:
    """What commas separate."""
    return tuple(each.strip() for each in text.split(",") if each.strip())
