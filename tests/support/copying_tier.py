"""copying_tier: a log directory, the archive it is copied into, the events, and whatever may break between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coldlog.archive.layouts.layout import SegmentFileKind
from coldlog.archive.layouts.local_tiered_storage import ROOT_DIRECTORY, SUFFIXES
from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.archive.metadata_log_writer import has_marker
from coldlog.archive.stores.object_writer import Content, UploadingStore, WritableStore
from coldlog.formats.kafka.remote_log.remote_log_events import Event
from coldlog.formats.limits import DecodeLimits
from coldlog.model.ids import TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.runtime.settings import S3Settings
from coldlog.runtime.settings_sources import settings_of
from coldlog.tables.delta.small_table import Row, SmallTable
from coldlog.tiering.copying.copy_segments import CopyOptions, CopySummary, copy_segments
from coldlog.tiering.event_logs import DirectoryEventLog, EventPlace, EventReader, KnownEventLog, directory_event_log
from coldlog.tiering.expiry.expire_partition import ExpiryRules
from coldlog.tiering.expiry.expire_segments import ExpireOptions, ExpirySummary, expire_segments
from coldlog.tiering.expiry.expire_segments import Tier as ExpiringTier
from coldlog.tiering.expiry.expiry_state import LogSources
from coldlog.tiering.rules.expiry import Retention
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.remote_segments import RemoteSegment
from coldlog.tiering.tier_assignments import LEADER_OF_ALL, Assignments
from coldlog.tiering.tier_partitions import TierPartitions
from coldlog.tiering.tier_schedule import ScheduleOptions, TierSchedule, tier_schedule_table
from coldlog.tiering.tier_settings import open_tier_archive
from virtual_clock import VirtualClock

_, FINISHED, _, DELETED = RemoteLogSegmentState
LIMITS = DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26)
OPTIONS = CopyOptions(broker_id=7, quota=QuotaConfig(), limits=LIMITS, threads=2)
S3_DEFAULTS = S3Settings()
REQUIRED = frozenset(kind for kind in SegmentFileKind if kind is not SegmentFileKind.TXN_INDEX)
ORDERS = TopicIdPartition(topic="orders", partition=0, topic_id="A" * 22)


@dataclass(slots=True, kw_only=True)
class Tier:
    """A broker's log directory, the archive it is copied into, the events; `break_at` is called before each step that
    is durable, and again behind it."""

    root: Path
    clock: VirtualClock = field(default_factory=VirtualClock)
    options: CopyOptions = OPTIONS
    break_at: Callable[[str], None] = lambda _: None
    breaks_tables: bool = False
    """A table is a step too: who was killed gives no lease back."""
    may_drop_events: bool = False
    """A run went on behind the end of its lease."""
    uri: str = ""
    s3: S3Settings = S3_DEFAULTS
    _read_state: dict[Path, tuple[int, int]] | None = None
    _read: dict[TopicIdPartition, tuple[RemoteSegment, ...]] = field(default_factory=dict)

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def archive(self) -> Path:
        return self.root / "archive"

    @property
    def metadata(self) -> Path:
        return self.root / "metadata"

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    def schedule(self, holder: str = "one", **changes: object) -> TierSchedule:
        options = replace(ScheduleOptions(holder=holder, broker_id=7), **changes)  # type: ignore[arg-type]  # as above
        table = tier_schedule_table(str(self.warehouse))
        if self.breaks_tables:
            table = BreakableTable(uri=table.uri, table=table.table, break_at=self.break_at)
        return TierSchedule(table=table, clock=self.clock, options=options)

    def open_archive(self) -> WritableStore:
        """As the jobs open it."""
        names = {"archive.uri": self.uri or str(self.archive), "metadata.uri": str(self.metadata)}
        values = settings_of(names, "a test")
        return open_tier_archive(replace(values, s3=self.s3))

    def copy(self, schedule: TierSchedule | None = None, **changes: object) -> CopySummary:
        options = replace(self.options, **changes)  # type: ignore[arg-type]  # a test names options
        store = BreakableStore(self.open_archive(), self.break_at)
        with self.opened_events() as events:
            return copy_segments(
                [str(self.logs)], store, BreakableLog(events, self.break_at), options, self.clock, schedule
            )

    def expire(
        self,
        retention_ms: int = -1,
        *,
        holder: str = "expirer",
        sources: Mapping[str, object] | None = None,
        schedule: TierSchedule | None = None,
        assignments: Assignments = LEADER_OF_ALL,
        **rules: object,
    ) -> ExpirySummary:
        """A run of expire_segments; by default whatever nobody holds is due."""
        own = {"retention": Retention(retention_ms=retention_ms), **rules}
        options = ExpireOptions(
            broker_id=self.options.broker_id,
            rules=ExpiryRules(**own),  # type: ignore[arg-type]  # a test names rules
            assignments=assignments,
            threads=self.options.threads,
        )
        store = BreakableStore(self.open_archive(), self.break_at)
        known: dict[str, Any] = {"supplied_log_starts": {}, **(sources or {})}
        with self.opened_events() as events:
            tier = ExpiringTier(
                archive=store,
                events=BreakableLog(events, self.break_at),
                sources=LogSources(archive=store, limits=LIMITS, **known),
                schedule=schedule or self.schedule(holder, ignores_times=True),
                partitions=BreakablePartitions.of(str(self.warehouse), self.clock, self.break_at),
                clock=self.clock,
            )
            return expire_segments(tier, options)

    def log_start(self, partition: TopicIdPartition = ORDERS) -> int | None:
        """Where expiry let the log begin."""
        return TierPartitions.below(str(self.warehouse), self.clock).log_starts().get(partition)

    @contextmanager
    def opened_events(self) -> Iterator[DirectoryEventLog]:
        with directory_event_log(str(self.metadata), topic=METADATA_TOPIC, partition_count=3, limits=LIMITS) as events:
            yield events

    def segments(self) -> dict[TopicIdPartition, tuple[RemoteSegment, ...]]:
        """What the events say, by partition; no log of them is begun here."""
        if not has_marker(str(self.metadata)):
            return {}
        files = {path: path.stat() for path in self.metadata.rglob("*")}
        state = {path: (each.st_size, each.st_mtime_ns) for path, each in files.items()}
        if state != self._read_state:
            with self.opened_events() as events:
                known = KnownEventLog(events)
            assert self.may_drop_events or known.dropped_count == 0
            self._read_state = state
            self._read = {partition: known.segments_of(partition) for partition in known.partitions()}
        return self._read

    def finished(self, partition: TopicIdPartition = ORDERS) -> list[tuple[int, int]]:
        """Offsets of what a reader of the events sees."""
        known = self.segments().get(partition, ())
        return [(each.start_offset, each.end_offset) for each in known if each.state is FINISHED]

    def objects(self) -> dict[str, set[str]]:
        """Suffixes by the stem of each segment in the archive, temporary files too."""
        found: dict[str, set[str]] = {}
        for path in (self.archive / ROOT_DIRECTORY).glob("*/*"):
            stem, _, suffix = path.name.partition(".")
            found.setdefault(f"{path.parent.name}/{stem}", set()).add(f".{suffix}")
        return found

    def require_sound(self) -> None:
        """Every finished segment has its objects, whole, and only they: no object is there without an event."""
        objects = self.objects()
        for partition, segments in self.segments().items():
            for each in segments:
                stem = stem_of(partition, each)
                if each.state is FINISHED:
                    assert objects[stem] >= {SUFFIXES[kind] for kind in REQUIRED}, stem
                    log = self.archive / ROOT_DIRECTORY / f"{stem}.log"
                    local = self.logs / f"{partition.topic}-{partition.partition}" / f"{each.start_offset:020d}.log"
                    assert log.read_bytes() == local.read_bytes()
                    assert each.size_bytes == log.stat().st_size
                if each.state is DELETED:
                    assert stem not in objects
        known = {stem_of(partition, each) for partition, segments in self.segments().items() for each in segments}
        assert objects.keys() <= known


def stem_of(partition: TopicIdPartition, segment: RemoteSegment) -> str:
    directory = f"{partition.topic}-{partition.partition}-{partition.topic_id}"
    return f"{directory}/{segment.start_offset:020d}-{segment.segment_id.segment_id}"


class KilledError(BaseException):
    """As a signal would come: nothing is cleaned up behind it."""


class BreakableStore:
    def __init__(self, store: WritableStore, break_at: Callable[[str], None]) -> None:
        self._store, self._break_at = store, break_at
        self.iter_objects, self.list_level = store.iter_objects, store.list_level
        self.list_directories, self.size_bytes, self.read_range, self.open_file = (
            store.list_directories,
            store.size_bytes,
            store.read_range,
            store.open_file,
        )
        if isinstance(store, UploadingStore):
            self.iter_uploads, self.abort_upload = store.iter_uploads, store.abort_upload

    @property
    def uri(self) -> str:
        return self._store.uri

    def put(self, name: str, content: Content) -> None:
        self._break_at(f"put {name}")
        self._store.put(name, content)
        self._break_at(f"put {name} done")

    def delete(self, name: str) -> None:
        self._break_at(f"delete {name}")
        self._store.delete(name)
        self._break_at(f"delete {name} done")


class BreakableLog:
    def __init__(self, events: DirectoryEventLog, break_at: Callable[[str], None]) -> None:
        self._events, self._break_at = events, break_at

    def append(self, event: Event) -> EventPlace:
        state = getattr(event, "state", "")
        self._break_at(f"event {state}")
        place = self._events.append(event)
        self._break_at(f"event {state} done")
        return place

    def open_reader(self) -> EventReader:
        return self._events.open_reader()


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakableTable(SmallTable):
    break_at: Callable[[str], None]

    def change(self, change: Callable[[list[Row]], Sequence[Row]]) -> list[Row]:
        self.break_at(f"table {self.table.name}")
        changed = SmallTable.change(self, change)
        self.break_at(f"table {self.table.name} done")
        return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakablePartitions(TierPartitions):
    break_at: Callable[[str], None]

    @classmethod
    def of(cls, warehouse: str, clock: VirtualClock, break_at: Callable[[str], None]) -> BreakablePartitions:
        table = TierPartitions.below(warehouse, clock).table
        return cls(table=table, clock=clock, break_at=break_at)

    def move_log_start(self, partition: TopicIdPartition, *, since: int, to: int) -> None:
        self.break_at("log start")
        TierPartitions.move_log_start(self, partition, since=since, to=to)
        self.break_at("log start done")


@dataclass(slots=True)
class BreakAt:
    """Raises at the step of that number, once; who is killed does nothing any more."""

    number: int
    failure: BaseException
    count: int = 0

    def __call__(self, step: str) -> None:
        self.count += 1
        is_dead = isinstance(self.failure, KilledError) and self.count > self.number
        if is_dead or self.count == self.number:
            raise self.failure
