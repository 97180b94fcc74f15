"""settings: what can be set, of which type, with which default, and what does it mean?

Every key is declared once, as a field: its dotted name is `<group>.<field>`, its type the annotation, its meaning the
text beside it. `coldlog.runtime.settings_sources` fills these classes from conf/base.toml, conf/<env>.toml and `--set`;
keys under `spark.` are handed to the Spark session as they are.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, TypeVar

from coldlog.errors import UsageError
from coldlog.model.states import IndexDepth, IsolationLevel

Uri = NewType("Uri", str)
"""A URI with a scheme, or an absolute path of the local file system."""

ByteCount = NewType("ByteCount", int)
"""A number of bytes; in files and on the command line also written with a unit, as in "32 MiB"."""

_Value = TypeVar("_Value")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class ArchiveLayout(StrEnum):
    """How an archive names its objects."""

    LOCAL_TIERED_STORAGE = "local_tiered_storage"
    LOG_DIRECTORIES = "log_directories"
    AIVEN = "aiven"


class MetadataSource(StrEnum):
    """Where the records of the metadata topic are read; all but a live topic lie at `metadata.uri`."""

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
    """A field of a settings group, with the text that `--list-settings` shows; `key` where it has a name of Kafka's."""
    metadata = {"meaning": meaning, "at_least": at_least, "at_most": at_most, "key": key}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Where the archived segments lie."""

    uri: Uri | None = setting(None, "root of the archive: a directory or a URI")
    layout: ArchiveLayout = setting(
        ArchiveLayout.LOCAL_TIERED_STORAGE,
        "how the archive names its objects: as LocalTieredStorage, a mirror of brokers' log directories, or the Aiven "
        "plugin",
    )
    above_partitions: str | None = setting(
        None, "log_directories: directories between archive.uri and the partitions, * for any name: */cluster"
    )
    key_prefix: str | None = setting(
        None, "aiven: key.prefix of the plugin; where it was changed, all of them, separated by commas"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """How archives in a bucket are asked; where and by whom is said by the environment and the AWS profile."""

    connect_timeout_ms: int = setting(10_000, "so long a connection may take to be made", at_least=1, at_most=600_000)
    read_timeout_ms: int = setting(30_000, "so long nothing may come of an answer", at_least=1, at_most=600_000)
    max_attempts: int = setting(
        8, "how often S3 is asked in all: throttled, failed and lost requests are repeated", at_least=1, at_most=100
    )
    first_delay_ms: int = setting(
        250, "pause before a request is repeated; it doubles each time, up to 20 s", at_least=1, at_most=20_000
    )
    read_ahead_bytes: ByteCount = setting(
        ByteCount(32 * MIB), "fetched ahead of what walks through a log, for each task; 0: nothing", at_most=GIB
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseSettings:
    """Where the Delta tables lie."""

    uri: Uri | None = setting(None, "root of the warehouse; each table is a directory below it")
    as_of: str | None = setting(
        None, "read it as it was: ISO 8601, epoch milliseconds, or v<N>, a version of partition_metadata; no job writes"
    )
    persistent_functions: bool = setting(
        False, "keep the SQL functions in the session's catalog too, as coldlog.<function>; it must be Hive's metastore"
    )
    lease_seconds: float = setting(
        60.0, "on S3: how long a job that was killed keeps others from writing the warehouse", at_least=2
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartOffsetsSettings:
    """What was deleted with DeleteRecords; an archive alone does not say."""

    uri: Uri | None = setting(
        None, "CSV file topic,partition,log_start_offset; without it a log starts where it is tiered"
    )
    bootstrap_servers: str | None = setting(
        None, "host:port,...: brokers that are asked for the earliest offset of every partition; the higher one counts"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    """Kafka's own list of remote segments, the topic `__remote_log_metadata`."""

    uri: Uri | None = setting(
        None, "where its records lie; without it, segments are told from the archive's listing alone"
    )
    source: MetadataSource = setting(
        MetadataSource.LOG_SEGMENTS,
        "what lies there: the topic's log segments, or a Delta table of its records; topic: ask the brokers instead",
    )
    topic: str = setting("__remote_log_metadata", "name of the topic, and of its directories")
    bootstrap_servers: str | None = setting(None, "host:port,...: brokers that have the live topic")
    client_config: Uri | None = setting(
        None, "properties file with the Kafka client's options (security and such), for every broker that is asked"
    )
    timeout_ms: int = setting(
        30_000, "a broker that answers nothing for so long is down", at_least=1_000, at_most=500_000
    )
    partitions: int = setting(
        50,
        "partitions of a log that copy_segments begins at metadata.uri",
        at_least=1,
        at_most=10_000,
        key="rlmm.config.remote.log.metadata.topic.num.partitions",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySettings:
    """What copy_segments copies, and how fast. Kafka's names where Kafka has one."""

    log_directories: str | None = setting(None, "log.dirs of the broker: directories of this machine, commas between")
    broker_id: int = setting(
        -1, "under which number copies are announced; only its own unfinished ones are cleaned up", key="broker.id"
    )
    topics: str = setting("*", "topics to copy: names or patterns with * and ?, commas between")
    threads: int = setting(
        10, "partitions copied at once", at_least=1, at_most=1024, key="remote.log.manager.copier.thread.pool.size"
    )
    max_bytes_per_second: ByteCount = setting(
        ByteCount(2**63 - 1),
        "write quota of the broker: checked before each segment; the default is none",
        at_least=1,
        key="remote.log.manager.copy.max.bytes.per.second",
    )
    quota_window_num: int = setting(
        11, "windows that the rate is taken over", at_least=1, key="remote.log.manager.copy.quota.window.num"
    )
    quota_window_size_seconds: int = setting(
        1, "length of a window", at_least=1, key="remote.log.manager.copy.quota.window.size.seconds"
    )
    fairness: bool = setting(
        False, "over the quota a partition of which a segment was copied lets the others go first, instead of waiting"
    )
    upload_bytes_per_second: ByteCount = setting(
        ByteCount(0), "spreads the bytes inside segments; 0: not", key="upload.rate.limit.bytes.per.second"
    )
    assume_committed: bool = setting(
        False, "take closed segments for committed where no replication-offset-checkpoint says how far that is so"
    )
    allow_gaps: bool = setting(
        False, "copy segments whose records end before the next one begins: of topics that once were compacted"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """When a partition of the tier is processed, and by whom. Kafka's names where Kafka has one."""

    scheduled: bool = setting(
        False,
        "copy_segments keeps a schedule and leases in tier_schedule below warehouse.uri; once it is there, always",
    )
    process_interval_ms: int = setting(
        30_000, "a partition is processed so long after it was last", at_least=1, key="rlm.process.interval.ms"
    )
    retry_interval_ms: int = setting(
        30_000, "a partition that failed is tried again after so long", at_least=1, key="rlm.retry.interval.ms"
    )
    lease_ms: int = setting(
        60_000,
        "a run that was killed keeps its partitions from others for so long; clocks of hosts differ by less",
        at_least=3_000,
        at_most=86_400_000,
    )
    assignments: Uri | None = setting(
        None,
        "CSV file topic,partition,role: of which partitions this host is leader or follower; without it, of all leader",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireSettings:
    """What expire_segments deletes. Kafka's names where Kafka has one; -1 is without end."""

    retention_ms: int = setting(-1, "segments whose records are all older go", at_least=-1, key="retention.ms")
    retention_bytes: int = setting(
        -1, "of each partition the oldest segments go that are beyond so many bytes", at_least=-1, key="retention.bytes"
    )
    retentions: Uri | None = setting(
        None, "CSV file topic,retention_ms,retention_bytes: of single topics, in place of the two above"
    )
    pass_future_timestamps: bool = setting(
        False, "delete segments that are later than now too, where those behind them are expired by time"
    )
    log_start_of_directories: bool = setting(
        False, "what lies below the log start of copy.log_directories goes; a broker moves it by its own retention too"
    )
    log_start_of_brokers: bool = setting(
        False,
        "what lies below the log start that log_start_offsets.bootstrap_servers tells goes; only of brokers that tier",
    )
    orphan_min_age_ms: int = setting(
        86_400_000,
        "objects that belong to nothing are kept so long, and for the retention",
        at_least=60_000,
        key="expire.orphan.min.age.ms",
    )
    threads: int = setting(
        10, "partitions expired at once", at_least=1, at_most=1024, key="remote.log.manager.expiration.thread.pool.size"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How archived records are fetched, and how fast. Kafka's names where Kafka has one."""

    timeout_ms: int = setting(
        30_000, "fetch_records asks again for so long what does not answer", at_least=0, at_most=2**31 - 1
    )
    max_bytes_per_second: ByteCount = setting(
        ByteCount(2**63 - 1),
        "read quota of a process that fetches; the default is none",
        at_least=1,
        key="remote.log.manager.fetch.max.bytes.per.second",
    )
    quota_window_num: int = setting(
        11, "windows that the rate is taken over", at_least=1, key="remote.log.manager.fetch.quota.window.num"
    )
    quota_window_size_seconds: int = setting(
        1, "length of a window", at_least=1, key="remote.log.manager.fetch.quota.window.size.seconds"
    )
    threads: int = setting(
        10, "reads of the archive at once", at_least=1, at_most=1024, key="remote.log.reader.threads"
    )
    max_pending: int = setting(
        100, "fetches that may wait; more are refused", at_least=1, key="remote.log.reader.max.pending.tasks"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSettings:
    """When a listing is believed."""

    accept_replaced_archive: bool = setting(
        False, "go on where an archive holds none of the segments that the warehouse knows"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """What is indexed, and how much memory one segment may take."""

    depth: IndexDepth = setting(
        IndexDepth.RECORD,
        "batch: headers and checksums; record: the records' timestamps too, lookups then read no archive",
    )
    window_bytes: ByteCount = setting(
        ByteCount(8 * MIB), "bytes of a segment that are read at once", at_least=MIB, at_most=64 * MIB
    )
    max_batch_bytes: ByteCount = setting(
        ByteCount(128 * MIB), "a batch longer than this, compressed, is damage", at_least=KIB, at_most=2 * GIB - 1
    )
    max_decompressed_bytes: ByteCount = setting(
        ByteCount(128 * MIB), "a batch whose records decompress to more is damage", at_least=KIB, at_most=2 * GIB - 1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """How build_indexes divides and commits its work, and when it gives up."""

    max_bytes_per_commit: ByteCount = setting(
        ByteCount(64 * GIB), "log bytes indexed before their rows are published", at_least=1
    )
    tasks_per_core: int = setting(
        4, "Spark tasks for each core, each with segments of about equal bytes", at_least=1, at_most=64
    )
    max_quarantined_share: float = setting(
        0.5,
        "fail the job when more than one segment and more than this share of a run's are quarantined",
        at_least=0,
        at_most=1,
    )
    retry_quarantined: bool = setting(False, "try segments again that were quarantined by an earlier run")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupSettings:
    """Which answer a lookup gives."""

    broker_compatible: bool = setting(
        False, "answer as Kafka's own search does, which stops at the first segment that promises a match"
    )
    isolation_level: IsolationLevel = setting(
        IsolationLevel.READ_UNCOMMITTED,
        "read_committed: no answer behind the oldest transaction that is open at the archive's end",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsSettings:
    """How long a request of list_offsets may take, and what it may ask beside the archive."""

    timeout_ms: int = setting(
        30_000,
        "a request without a timeout of its own that takes longer is answered REQUEST_TIMED_OUT",
        at_least=1,
        at_most=2**31 - 1,
        key="remote.list.offsets.request.timeout.ms",
    )
    max_partitions_at_once: int = setting(
        64, "partitions whose archive or local tier each task reads or asks at the same time", at_least=1, at_most=1024
    )
    log_directory: Uri | None = setting(
        None,
        "a broker's log directory, where what is not archived yet is; without it, LOCAL_REQUIRED is the answer",
    )
    bootstrap_servers: str | None = setting(
        None, "host:port,...: brokers that are asked for what is not archived yet, in place of a log directory"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """When tables are validated, and where people read what came of it."""

    after_build: bool = setting(False, "validate the tables at the end of run_pipeline, as validate_tables does")
    data_docs_uri: Uri | None = setting(
        None, "folder or s3://bucket/prefix for the results as HTML pages; without it, data_docs below the warehouse"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """How long maintain_tables keeps what is no longer needed."""

    deleted_after_hours: int = setting(
        168,
        "index rows of segments that are gone for so long are dropped; the segments' own rows stay",
        at_least=1,
        at_most=720,
    )
    vacuum_after_hours: int = setting(
        168,
        "files of older versions are removed; running jobs and warehouse.as_of reach back no further",
        at_least=168,
        at_most=720,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What the workers of a cluster have; where Spark runs on this machine alone, it is what this machine has."""

    python: str = setting(
        "python{}.{}".format(*sys.version_info),
        "the interpreter that workers find, of the driver's minor version",
    )
    ship_packages: bool = setting(
        True, "send the Python packages that tasks need along with each job; false: the workers' interpreter has them"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a run. `origins` says where the value of a key came from; a key not in it has its default."""

    archive: ArchiveSettings = ArchiveSettings()
    s3: S3Settings = S3Settings()
    warehouse: WarehouseSettings = WarehouseSettings()
    log_start_offsets: LogStartOffsetsSettings = LogStartOffsetsSettings()
    metadata: MetadataSettings = MetadataSettings()
    copy: CopySettings = CopySettings()
    expire: ExpireSettings = ExpireSettings()
    tier: TierSettings = TierSettings()
    fetch: FetchSettings = FetchSettings()
    scan: ScanSettings = ScanSettings()
    index: IndexSettings = IndexSettings()
    build: BuildSettings = BuildSettings()
    lookup: LookupSettings = LookupSettings()
    list_offsets: ListOffsetsSettings = ListOffsetsSettings()
    validation: ValidationSettings = ValidationSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    cluster: ClusterSettings = ClusterSettings()
    spark: Mapping[str, str] = field(default_factory=dict)
    env: str = "local"
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def archive_uri(self) -> str:
        """`archive.uri`, for those who cannot do without."""
        return _required("archive.uri", self.archive.uri, self.env)

    @property
    def warehouse_uri(self) -> str:
        """`warehouse.uri`, for those who cannot do without."""
        return _required("warehouse.uri", self.warehouse.uri, self.env)

    def items(self) -> list[tuple[str, object]]:
        """(dotted key, value) of every setting, `spark.` keys last."""
        groups = [(group, getattr(self, group)) for group in SETTING_GROUPS]
        own = [
            (key_of(group, each), getattr(value, each.name))
            for group, value in groups
            for each in dataclasses.fields(value)
        ]
        return own + [(key, self.spark[key]) for key in sorted(self.spark)]

    def origin(self, key: str) -> str:
        """Where the value of `key` came from."""
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
    "scan": ScanSettings,
    "index": IndexSettings,
    "build": BuildSettings,
    "lookup": LookupSettings,
    "list_offsets": ListOffsetsSettings,
    "validation": ValidationSettings,
    "maintenance": MaintenanceSettings,
    "cluster": ClusterSettings,
}


def key_of(group: str, each: dataclasses.Field[object]) -> str:
    """The dotted name of a field in a group."""
    return str(each.metadata["key"] or f"{group}.{each.name}")


def _required(key: str, uri: Uri | None, env: str) -> str:
    if uri is None:
        raise UsageError(f"{key} is not set: give --set {key}=... or write it into conf/{env}.toml")
    return uri
