"""Declare every setting with its type, default and meaning.

Each key is declared once, as a field. Its dotted name is `<group>.<field>`, its type is the annotation, and its meaning
is the text beside it. `coldlog.runtime.settings_sources` fills these classes from the files of conf, the user's file,
environment variables and `--set`. Keys under `spark.` are passed to the Spark session unchanged.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, TypeVar

from coldlog.errors import UsageError
from coldlog.model.layout_names import LayoutName
from coldlog.model.states import (
    CommittedOffsets,
    DriverJvm,
    IndexDepth,
    IsolationLevel,
    LookupEngine,
    OnGap,
    ServeOnGap,
)

Uri = NewType("Uri", str)
"""A URI with a scheme, or an absolute path of the local file system."""

ByteCount = NewType("ByteCount", int)
"""A number of bytes; files and the command line may use a unit, as in "32 MiB"."""

_Value = TypeVar("_Value")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class MetadataSource(StrEnum):
    """Where the records of the metadata topic are read: at `metadata.uri`, or for `topic` from the brokers."""

    LOG_SEGMENTS = "log_segments"
    TABLE = "table"
    TOPIC = "topic"


def setting(
    default: _Value,
    meaning: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    key: str | None = None,
) -> _Value:
    """Declare a field of a settings group with the text for `--list-settings`; `key` is Kafka's name, if it has one."""
    metadata = {"meaning": meaning, "at_least": at_least, "at_most": at_most, "key": key}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Where the archived segments are."""

    uri: Uri | None = setting(None, "root of the archive: a directory or a URI")
    layout: LayoutName = setting(
        LayoutName.LOCAL_TIERED_STORAGE,
        "how the archive names its objects: like LocalTieredStorage, like brokers' log directories, or like the Aiven "
        "plugin",
    )
    above_partitions: str | None = setting(
        None, "log_directories: directories between archive.uri and the partitions; * is any name, as in */cluster"
    )
    key_prefix: str | None = setting(
        None, "aiven: key.prefix of the plugin; if it was changed, all its values, separated by commas"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """How requests to S3 are made. The environment and the AWS profile give the endpoint and the credentials."""

    connect_timeout_ms: int = setting(10_000, "time limit for opening a connection", at_least=1, at_most=600_000)
    read_timeout_ms: int = setting(30_000, "time limit for the next bytes of a response", at_least=1, at_most=600_000)
    max_attempts: int = setting(
        8, "attempts of a request in all; throttled, failed and lost requests are repeated", at_least=1, at_most=100
    )
    first_delay_ms: int = setting(
        250, "pause before a request is repeated; it doubles each time, up to 20 s", at_least=1, at_most=20_000
    )
    read_ahead_bytes: ByteCount = setting(
        ByteCount(32 * MIB), "bytes of a log that each task fetches ahead while it reads; 0: none", at_most=GIB
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseSettings:
    """Where the Delta tables are."""

    uri: Uri | None = setting(
        None,
        "root of the warehouse; each table is a directory below it; without percent escapes, backslashes and control "
        "characters",
    )
    as_of: str | None = setting(
        None,
        "read the tables as of this time: ISO 8601, epoch milliseconds, or v<N>, a version of partition_metadata; jobs "
        "cannot write then",
    )
    report_damage: bool = setting(
        True,
        "who finds damage in the archive adds a row to the table damage_reports, so that the next run_pipeline reads "
        "that log completely; false: readers write nothing",
    )
    persistent_functions: bool = setting(
        False, "also store the SQL functions in the session's catalog as coldlog.<function>; needs a Hive metastore"
    )
    lease_seconds: float = setting(
        60.0, "S3 only: a killed job blocks other writers of the warehouse for this long", at_least=2
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartOffsetsSettings:
    """Where supplied log start offsets are read. The archive shows a DeleteRecords only in a later checkpoint."""

    uri: Uri | None = setting(
        None, "CSV file topic,partition,log_start_offset; without it, checkpoints and deleted segments show the start"
    )
    bootstrap_servers: str | None = setting(
        None, "host:port,...: brokers to ask for the earliest offset of each partition; the higher offset counts"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    """Where Kafka's list of remote segments is read: the topic `__remote_log_metadata`."""

    uri: Uri | None = setting(
        None, "where the topic's records are; without it, segments are known from the archive's listing alone"
    )
    source: MetadataSource = setting(
        MetadataSource.LOG_SEGMENTS,
        "what metadata.uri holds: the topic's log segments, or a Delta table of its records; topic: read the brokers",
    )
    topic: str = setting("__remote_log_metadata", "name of the topic and of its directories")
    bootstrap_servers: str | None = setting(None, "host:port,...: brokers that have the live topic")
    client_config: Uri | None = setting(
        None, "properties file with options of the Kafka client, such as security; used for all brokers"
    )
    timeout_ms: int = setting(
        30_000, "a broker that does not answer for this long is down", at_least=1_000, at_most=500_000
    )
    partitions: int = setting(
        50,
        "number of partitions when copy_segments creates the event log at metadata.uri",
        at_least=1,
        at_most=10_000,
        key="rlmm.config.remote.log.metadata.topic.num.partitions",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySettings:
    """What copy_segments copies, and how fast. Keys have Kafka's names where Kafka has the setting."""

    log_directories: str | None = setting(
        None, "log.dirs of the broker: directories on this machine, separated by commas"
    )
    broker_id: int = setting(
        -1,
        "broker id in the events of copies; without a schedule, only unfinished copies of this id are cleaned up",
        key="broker.id",
    )
    topics: str = setting("*", "topics to copy: names or patterns with * and ?, separated by commas")
    threads: int = setting(
        10,
        "partitions copied at the same time",
        at_least=1,
        at_most=1024,
        key="remote.log.manager.copier.thread.pool.size",
    )
    max_bytes_per_second: ByteCount = setting(
        ByteCount(2**63 - 1),
        "write quota of the broker, checked before each segment; by default there is no quota",
        at_least=1,
        key="remote.log.manager.copy.max.bytes.per.second",
    )
    quota_window_num: int = setting(
        11,
        "number of windows that the rate is measured over",
        at_least=1,
        key="remote.log.manager.copy.quota.window.num",
    )
    quota_window_size_seconds: int = setting(
        1, "length of a window", at_least=1, key="remote.log.manager.copy.quota.window.size.seconds"
    )
    fairness: bool = setting(
        False,
        "when the quota is used up, a partition that has copied a segment lets other partitions go first, instead of "
        "waiting",
    )
    upload_bytes_per_second: ByteCount = setting(
        ByteCount(0), "upload rate limit inside a segment; 0: no limit", key="upload.rate.limit.bytes.per.second"
    )
    assume_committed: bool = setting(
        False, "treat closed segments as committed if there is no replication-offset-checkpoint"
    )
    allow_gaps: bool = setting(
        False, "copy segments whose records end before the next segment begins; for topics that were compacted once"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """When a partition of the tier is processed, and by which host. Keys have Kafka's names where Kafka has one."""

    scheduled: bool = setting(
        False,
        "copy_segments keeps a schedule and leases in table tier_schedule below warehouse.uri; it always does so once "
        "the table exists",
    )
    process_interval_ms: int = setting(
        30_000, "time between two runs over a partition", at_least=1, key="rlm.process.interval.ms"
    )
    retry_interval_ms: int = setting(
        30_000, "time before a failed partition is tried again", at_least=1, key="rlm.retry.interval.ms"
    )
    lease_ms: int = setting(
        60_000,
        "a killed run blocks its partitions for this long; clocks of the hosts must differ by less",
        at_least=3_000,
        at_most=86_400_000,
    )
    assignments: Uri | None = setting(
        None,
        "CSV file topic,partition,role: this host is leader or follower of these partitions; without it, leader of all",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireSettings:
    """What expire_segments deletes. Keys have Kafka's names where Kafka has one; -1 means no limit."""

    retention_ms: int = setting(
        -1, "delete segments whose records are all older than this", at_least=-1, key="retention.ms"
    )
    retention_bytes: int = setting(
        -1, "delete the oldest segments of a partition that exceed this size", at_least=-1, key="retention.bytes"
    )
    retentions: Uri | None = setting(
        None, "CSV file topic,retention_ms,retention_bytes: replaces the two settings above for single topics"
    )
    pass_future_timestamps: bool = setting(
        False, "also delete segments with future timestamps, if segments after them have expired by time"
    )
    log_start_of_directories: bool = setting(
        False,
        "delete segments below the log start of copy.log_directories; the broker's retention moves this log start too",
    )
    log_start_of_brokers: bool = setting(
        False,
        "delete segments below the log start that log_start_offsets.bootstrap_servers report; only for brokers that "
        "tier",
    )
    orphan_min_age_ms: int = setting(
        86_400_000,
        "objects that belong to no segment are kept for this long, and for the retention",
        at_least=60_000,
        key="expire.orphan.min.age.ms",
    )
    threads: int = setting(
        10,
        "partitions expired at the same time",
        at_least=1,
        at_most=1024,
        key="remote.log.manager.expiration.thread.pool.size",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How archived records are fetched, and how fast. Keys have Kafka's names where Kafka has one."""

    timeout_ms: int = setting(
        30_000, "fetch_records repeats a failed read of the archive for this long", at_least=0, at_most=2**31 - 1
    )
    max_bytes_per_second: ByteCount = setting(
        ByteCount(2**63 - 1),
        "read quota of a process that reads the archive; by default there is no quota",
        at_least=1,
        key="remote.log.manager.fetch.max.bytes.per.second",
    )
    log_directory: Uri | None = setting(
        None,
        "a broker's log directory: fetches, DataFrames, replays and coldlog cat read there what is not archived yet",
    )
    bootstrap_servers: str | None = setting(
        None,
        "host:port,...: brokers that fetches and coldlog cat ask for what is not archived yet, instead of a log "
        "directory",
    )
    share_quota: bool = setting(
        False, "all processes that read the archive keep the quota together; each writes to tier_quotas"
    )
    quota_window_num: int = setting(
        11,
        "number of windows that the rate is measured over",
        at_least=1,
        key="remote.log.manager.fetch.quota.window.num",
    )
    quota_window_size_seconds: int = setting(
        1, "length of a window", at_least=1, key="remote.log.manager.fetch.quota.window.size.seconds"
    )
    threads: int = setting(
        10, "reads of the archive at the same time", at_least=1, at_most=1024, key="remote.log.reader.threads"
    )
    max_pending: int = setting(
        100, "fetches that may wait; the rest are refused", at_least=1, key="remote.log.reader.max.pending.tasks"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """How replays wait."""

    max_task_idle_ms: int = setting(
        0,
        "wait so long for partitions that have no new records while others of their task have; 0: read all that is "
        "archived and do not wait, -1: never wait",
        at_least=-1,
        at_most=2**63 - 1,
        key="max.task.idle.ms",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What `coldlog serve` offers to Kafka clients, and how much they may use."""

    listen: str = setting("127.0.0.1:9092", "host:port to listen on; port 0 takes a free one")
    advertise: str | None = setting(None, "host:port that clients are told; by default where it listens")
    metrics: str | None = setting(None, "host:port that Prometheus asks; none by default")
    tls_certificate: str | None = setting(None, "PEM file of the certificate and its chain; clients must use TLS then")
    tls_key: str | None = setting(None, "PEM file of the certificate's key; by default in the same file")
    users: str | None = setting(
        None, "TOML file of users and hashed passwords; clients must authenticate with SASL then"
    )
    allow_remote: bool = setting(False, "listen on addresses that other machines reach without both TLS and users")
    on_gap: ServeOnGap = setting(
        ServeOnGap.ERROR,
        "at offsets that no segment serves: error (CORRUPT_MESSAGE) or skip (go on with the records after them)",
    )
    topic_prefix: str | None = setting(None, "put before the name of every topic, as in archive.orders")
    refresh_seconds: float = setting(30.0, "newer tables are looked for this often", at_least=0.1)
    lookup_threads: int = setting(
        5,
        "threads that answer from the tables; each keeps what it read",
        at_least=1,
        at_most=256,
        key="remote.log.offset.reader.threads",
    )
    lookup_max_pending: int = setting(
        100,
        "questions that may wait for such a thread; the rest are refused, and clients ask again",
        at_least=1,
        key="remote.log.offset.read.max.pending.tasks",
    )
    max_request_bytes: ByteCount = setting(
        ByteCount(2 * MIB), "a longer request ends its connection", at_least=1024, at_most=100 * MIB
    )
    max_connections: int = setting(1000, "more are refused", at_least=1, at_most=100_000)
    request_seconds: float = setting(
        25.0, "time for reading what a request asks for; clients wait 30 s by default", at_least=0.1
    )
    read_ahead_bytes: ByteCount = setting(
        ByteCount(64 * MIB),
        "memory for what sequential consumers of a bucket ask for next, of all connections; 0 reads nothing ahead",
        at_least=0,
    )
    first_rebalance_delay_ms: int = setting(
        500,
        "an empty consumer group waits this long for further members",
        at_least=0,
        at_most=600_000,
        key="group.initial.rebalance.delay.ms",
    )
    committed_offsets: CommittedOffsets = setting(
        CommittedOffsets.TABLE,
        "where committed offsets are kept: table (committed_offsets of the warehouse) or memory (lost at the end)",
    )
    offsets_retention_minutes: int = setting(
        7 * 24 * 60,
        "offsets are removed when their group has had no members, and has committed nothing, for so long",
        at_least=1,
        key="offsets.retention.minutes",
    )
    node_id: int | None = setting(
        None,
        "number of this endpoint among those of the warehouse, which share groups; without it they do not",
        at_least=0,
        at_most=(1 << 31) - 1,
    )
    group_lease_seconds: float = setting(
        10.0,
        "with serve.node_id: other endpoints take over the groups of one that has written nothing for so long",
        at_least=3,
        at_most=600,
    )
    idle_seconds: float = setting(600.0, "a connection without a request for this long is closed", at_least=0.1)
    drain_seconds: float = setting(10.0, "time for requests in progress after SIGTERM", at_least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """When run_pipeline does its work."""

    skip_unchanged: bool = setting(
        True,
        "run_pipeline ends at once, without Spark, if nothing has changed since the last one; false: never",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSettings:
    """What is listed, and when a listing is accepted."""

    accept_replaced_archive: bool = setting(False, "accept an archive that holds none of the segments in the warehouse")
    full_listing_hours: float = setting(
        24.0,
        "run_pipeline lists a whole partition directory whose segments the metadata topic announces once in this time, "
        "and what events name in it when they do; 0: in every run",
        at_least=0,
    )
    inventory_uri: Uri | None = setting(
        None,
        "S3 Inventory reports of the archive's bucket, from which run_pipeline takes listings, and scan_segments the "
        "first one of a warehouse: "
        "s3://bucket/prefix/source-bucket/config-id, or one manifest.json",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """What is indexed, and how much memory one segment may take."""

    depth: IndexDepth = setting(
        IndexDepth.RECORD,
        "sidecar: read the small files beside a log, and no byte of the log; batch: read batch headers and checksums; "
        "record: read record timestamps too, then lookups do not read the archive",
    )
    window_bytes: ByteCount = setting(
        ByteCount(8 * MIB), "bytes of a segment that one read fetches", at_least=MIB, at_most=64 * MIB
    )
    max_batch_bytes: ByteCount = setting(
        ByteCount(128 * MIB),
        "a batch that is larger than this, compressed, counts as damaged",
        at_least=KIB,
        at_most=2 * GIB - 1,
    )
    max_decompressed_bytes: ByteCount = setting(
        ByteCount(128 * MIB),
        "a batch whose records decompress to more than this counts as damaged",
        at_least=KIB,
        at_most=2 * GIB - 1,
    )
    salvage: bool = setting(
        True, "index the sound batches of a segment with damaged files; false: leave the whole segment out"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """How segments are indexed from the small files beside their logs (`index.depth` = sidecar)."""

    stride_bytes: ByteCount = setting(
        ByteCount(64 * KIB),
        "bytes of a log for each row of interval_index; a lookup reads about so many",
        at_least=KIB,
        at_most=GIB,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """How build_indexes divides and commits its work, and when it fails."""

    max_bytes_per_commit: ByteCount = setting(
        ByteCount(0), "log bytes indexed before their rows are published; 0: 32 GiB for each core"
    )
    tasks_per_core: int = setting(
        4, "Spark tasks per core; each task gets about the same number of bytes", at_least=1, at_most=64
    )
    max_quarantined_share: float = setting(
        0.5,
        "fail the job if more than one segment and more than this share of the run's segments are quarantined or "
        "have holes",
        at_least=0,
        at_most=1,
    )
    deepen: str | None = setting(
        None, "topics of deepen_indexes without --topics: names or patterns with * and ?, separated by commas"
    )
    max_hole_share: float = setting(
        1.0,
        "leave out a whole segment if more than this share of its log's bytes is damaged; 1: index whatever is sound",
        at_least=0,
        at_most=1,
    )
    retry_quarantined: bool = setting(
        False, "try segments again that an earlier run quarantined, or whose index files were damaged"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupSettings:
    """Which answer a lookup gives."""

    broker_compatible: bool = setting(
        False, "answer as a broker does: its search stops at the first segment whose metadata promises a match"
    )
    isolation_level: IsolationLevel = setting(
        IsolationLevel.READ_UNCOMMITTED,
        "read_committed: no answer after the start of the oldest transaction that is open at the end of the archive",
    )
    on_gap: OnGap = setting(
        OnGap.ANSWER,
        "if offsets that no segment serves may hold an earlier match: answer (with is_exact=false) or refuse "
        "(ARCHIVE_INCOMPLETE)",
    )
    engine: LookupEngine = setting(
        LookupEngine.AUTO,
        "lookup_offsets and list_offsets: auto answers up to 100,000 requests without Spark; spark always starts it",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsSettings:
    """How long a request of list_offsets may take, and where offsets that are not archived are read."""

    timeout_ms: int = setting(
        30_000,
        "a request without its own timeout that takes longer is answered with REQUEST_TIMED_OUT",
        at_least=1,
        at_most=2**31 - 1,
        key="remote.list.offsets.request.timeout.ms",
    )
    max_partitions_at_once: int = setting(
        64, "partitions that each task reads or asks at the same time", at_least=1, at_most=1024
    )
    log_directory: Uri | None = setting(
        None,
        "a broker's log directory, which has the offsets that are not archived yet; without it, they are answered with "
        "LOCAL_REQUIRED",
    )
    bootstrap_servers: str | None = setting(
        None, "host:port,...: brokers to ask for offsets that are not archived yet, instead of a log directory"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """When tables are validated, and where the results are written."""

    after_build: bool = setting(False, "validate the tables at the end of run_pipeline, as validate_tables does")
    data_docs_uri: Uri | None = setting(
        None, "folder or s3://bucket/prefix for HTML pages with the results; default: data_docs below the warehouse"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """How long maintain_tables keeps old rows and files."""

    deleted_after_hours: int = setting(
        168,
        "drop index rows of segments that have been gone for this long; the rows in segments stay",
        at_least=1,
        at_most=720,
    )
    forget_after_hours: int = setting(
        720,
        "remove the rows and events of segments that were deleted this long ago, so that runs do not read them",
        at_least=168,
        at_most=876_000,
    )
    vacuum_after_hours: int = setting(
        168,
        "remove files of older table versions after this time; running jobs and warehouse.as_of then cannot read them",
        at_least=168,
        at_most=720,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What the workers of a cluster have. Not used if Spark runs on this machine alone."""

    python: str = setting(
        "python{}.{}".format(*sys.version_info),
        "Python interpreter on the workers; it must have the driver's minor version",
    )
    ship_packages: bool = setting(
        True, "ship the Python packages that tasks need with each job; false: the workers have them installed"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """How Spark's driver starts."""

    jvm: DriverJvm = setting(
        DriverJvm.AUTO,
        "small: Java's quick compiler and serial collector; default: Java's own choice; auto: small for the jobs on a "
        "local master; default for replay_topics, and for validate_tables and maintain_tables of tables in a bucket or "
        "above 16 MB",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a run. `origins` has the origin of each value; a key that is not in it has its default."""

    archive: ArchiveSettings = ArchiveSettings()
    s3: S3Settings = S3Settings()
    warehouse: WarehouseSettings = WarehouseSettings()
    log_start_offsets: LogStartOffsetsSettings = LogStartOffsetsSettings()
    metadata: MetadataSettings = MetadataSettings()
    copy: CopySettings = CopySettings()
    expire: ExpireSettings = ExpireSettings()
    tier: TierSettings = TierSettings()
    fetch: FetchSettings = FetchSettings()
    replay: ReplaySettings = ReplaySettings()
    serve: ServeSettings = ServeSettings()
    pipeline: PipelineSettings = PipelineSettings()
    scan: ScanSettings = ScanSettings()
    index: IndexSettings = IndexSettings()
    sidecar: SidecarSettings = SidecarSettings()
    build: BuildSettings = BuildSettings()
    lookup: LookupSettings = LookupSettings()
    list_offsets: ListOffsetsSettings = ListOffsetsSettings()
    validation: ValidationSettings = ValidationSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    cluster: ClusterSettings = ClusterSettings()
    driver: DriverSettings = DriverSettings()
    spark: Mapping[str, str] = field(default_factory=dict)
    env: str = "local"
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def archive_uri(self) -> str:
        """`archive.uri`; `UsageError` if it is not set."""
        return _required("archive.uri", self.archive.uri)

    @property
    def warehouse_uri(self) -> str:
        """`warehouse.uri`; `UsageError` if it is not set."""
        return _required("warehouse.uri", self.warehouse.uri)

    def items(self) -> list[tuple[str, object]]:
        """List (dotted key, value) of every setting, `spark.` keys last."""
        groups = [(group, getattr(self, group)) for group in SETTING_GROUPS]
        declared = [
            (key_of(name, field_), getattr(group, field_.name))
            for name, group in groups
            for field_ in dataclasses.fields(group)
        ]
        return declared + [(key, self.spark[key]) for key in sorted(self.spark)]

    def origin(self, key: str) -> str:
        """Return the origin of the value of `key`."""
        return self.origins.get(key, "default")


SETTING_GROUPS: dict[str, type] = {
    "archive": ArchiveSettings,
    "s3": S3Settings,
    "warehouse": WarehouseSettings,
    "log_start_offsets": LogStartOffsetsSettings,
    "metadata": MetadataSettings,
    "copy": CopySettings,
    "expire": ExpireSettings,
    "tier": TierSettings,
    "fetch": FetchSettings,
    "replay": ReplaySettings,
    "serve": ServeSettings,
    "pipeline": PipelineSettings,
    "scan": ScanSettings,
    "index": IndexSettings,
    "sidecar": SidecarSettings,
    "build": BuildSettings,
    "lookup": LookupSettings,
    "list_offsets": ListOffsetsSettings,
    "validation": ValidationSettings,
    "maintenance": MaintenanceSettings,
    "cluster": ClusterSettings,
    "driver": DriverSettings,
}


def key_of(group: str, field_: dataclasses.Field[object]) -> str:
    """The dotted name of a field in a group."""
    return str(field_.metadata["key"] or f"{group}.{field_.name}")


def _required(key: str, uri: Uri | None) -> str:
    if uri is None:
        raise UsageError(f"{key} is not set: give --set {key}=... or a file with it (--config)")
    return uri
