"""damaged_archives: what comes of a segment between two good neighbours?

A partition of three small segments in memory, each with all of its side files, so that thousands of damages take
seconds; `build` reads it as a task of build_indexes does, and what is held of every outcome is held here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition, write_archive
from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, Segment, abort_marker, batch_positions
from coldlog.archive.layouts.local_tiered_storage import SUFFIXES, LocalTieredStorageLayout
from coldlog.errors import Reason
from coldlog.formats.limits import DecodeLimits
from coldlog.index.partition_plan import IncarnationPlan, plan_partition
from coldlog.index.segment_facts import SegmentFacts
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.index_files import outcome_rows
from coldlog.indexing.builds.index_rows import IndexPart, iter_rows
from coldlog.indexing.builds.segment_build import BuildOptions, Dropped, Outcome, OutcomeKind, build_segments
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.definition import TableDefinition
from stores.memory_store import MemoryStore

LOG = ".log"
SIDE_FILES = tuple(suffix for suffix in SUFFIXES.values() if suffix != LOG)
SEGMENT_OFFSETS = 8
PATTERNS = (0x01, 0x03, 0xC0)
LIMITS = DecodeLimits(max_batch_bytes=1 << 22, max_decompressed_bytes=1 << 22)
Row = dict[str, object]


def options(
    depth: IndexDepth,
    *,
    limits: DecodeLimits = LIMITS,
    window_bytes: int = 1 << 20,
    is_salvaging: bool = False,
) -> BuildOptions:
    return BuildOptions(depth=depth, limits=limits, window_bytes=window_bytes, is_salvaging=is_salvaging)


def small_segment(first: int, *, epoch: int, index_interval_bytes: int = 0) -> Segment:
    """Offsets `first` to `first + 7`: two aborted transactions, a leader that changes, and a last batch of an
    idempotent producer, as every producer is by default."""

    def records(count: int, shift: int) -> tuple[Record, ...]:
        return tuple(
            Record(timestamp_ms=1_000 + 10 * first + shift + at, key=b"k", value=b"v" * 9) for at in range(count)
        )

    def write(shift: int, leader_epoch: int) -> Batch:
        return Batch(
            base_offset=first + shift,
            records=records(1, shift),
            leader_epoch=leader_epoch,
            is_transactional=True,
            producer_id=7,
            producer_epoch=0,
            base_sequence=shift,
        )

    def abort(shift: int) -> Batch:
        return abort_marker(
            offset=first + shift,
            timestamp_ms=1_000 + 10 * first + shift,
            producer_id=7,
            producer_epoch=0,
            leader_epoch=epoch + 1,
        )

    last = Batch(
        base_offset=first + 6,
        records=records(2, 6),
        leader_epoch=epoch + 1,
        producer_id=8,
        producer_epoch=0,
        base_sequence=first,
    )
    return Segment(
        batches=(
            Batch(base_offset=first, records=records(2, 0), leader_epoch=epoch, codec=Codec.GZIP),
            write(2, epoch),
            abort(3),
            write(4, epoch + 1),
            abort(5),
            last,
        ),
        index_interval_bytes=index_interval_bytes,
    )


@dataclass(frozen=True)
class Partition:
    """Segments by offset and their objects; the one in the middle is there to be damaged."""

    segments: tuple[Segment, ...]
    objects: Mapping[str, bytes]

    @staticmethod
    def of(*segments: Segment) -> Partition:
        with TemporaryDirectory() as directory:
            write_archive(Path(directory), {TopicPartition(topic="orders", partition=0): segments})
            root = Path(directory) / ARCHIVE_FOLDER
            files = sorted(path for path in root.rglob("*") if path.is_file())
            return Partition(segments, {str(path.relative_to(root)): path.read_bytes() for path in files})

    def name_of(self, suffix: str, *, segment: int = 1) -> str:
        """The object of a segment, by its place."""
        start = f"/{self.segments[segment].start_offset:020d}-"
        (name,) = [name for name in self.objects if start in name and name.endswith(suffix)]
        return name

    def content(self, suffix: str, *, segment: int = 1) -> bytes:
        return self.objects[self.name_of(suffix, segment=segment)]

    def with_content(self, suffix: str, content: bytes, *, segment: int = 1) -> Partition:
        return Partition(self.segments, {**self.objects, self.name_of(suffix, segment=segment): content})

    @cached_property
    def borders(self) -> list[int]:
        """Where the batches of the middle log begin, and its end."""
        return [*batch_positions(self.segments[1].batches), len(self.content(LOG))]


def small_partition(*, index_interval_bytes: int = 0) -> Partition:
    """The epoch changes in every segment."""
    return Partition.of(
        *(
            small_segment(SEGMENT_OFFSETS * number, epoch=number, index_interval_bytes=index_interval_bytes)
            for number in range(3)
        )
    )


@dataclass(frozen=True, eq=False)
class Built:
    """What a build hands over of one segment: the parts of its index, and its outcome, which comes last."""

    parts: tuple[IndexPart, ...]
    ended: Outcome

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Built) and (self.encoded, self.outcome) == (other.encoded, other.outcome)

    def __hash__(self) -> int:
        return hash(self.ended.segment)

    @cached_property
    def outcome(self) -> Row:
        """The outcome as the driver gets it."""
        (row,) = outcome_rows([self.ended.row]).to_pylist()
        return dict(row)

    @cached_property
    def encoded(self) -> dict[str, bytes]:
        """The rows of each table that has some."""
        return {table.name: rows.serialize().to_pybytes() for table, _, rows in iter_rows(self.parts)}

    def rows(self, table: TableDefinition) -> list[Row]:
        found = {each.name: rows for each, _, rows in iter_rows(self.parts)}
        return list(found[table.name].to_pylist()) if table.name in found else []


def build(partition: Partition, build_options: BuildOptions) -> list[Built]:
    """What a build makes of each segment, in order."""
    return build_store(MemoryStore(partition.objects), build_options)


def build_store(store: MemoryStore, build_options: BuildOptions) -> list[Built]:
    layout = LocalTieredStorageLayout(store=store)
    return build_works(layout, list_works(layout), build_options)


def list_works(layout: LocalTieredStorageLayout) -> list[SegmentWork]:
    """Every segment of the one partition."""
    (directory,) = layout.list_partition_directories().directories
    return [
        SegmentWork(
            segment=segment, log_modified_ms=0, count_from_offset=segment.start_offset, replaces_build_numbers=()
        )
        for segment in layout.list_segments(directory).segments
    ]


def build_works(layout: LocalTieredStorageLayout, works: list[SegmentWork], build_options: BuildOptions) -> list[Built]:
    built, parts = list[Built](), list[IndexPart]()
    for part in build_segments(layout, works, build_options):
        match part:
            case Dropped():
                parts.clear()
            case Outcome():
                built.append(Built(tuple(parts), part))
                parts.clear()
            case _:
                parts.append(part)
    return built


def flips(content: bytes, patterns: tuple[int, ...]) -> Iterator[tuple[int, bytes]]:
    """Each byte, changed by each pattern."""
    for at in range(len(content)):
        for pattern in patterns:
            yield at, content[:at] + bytes([content[at] ^ pattern]) + content[at + 1 :]


# The offset index of so short a segment is empty: the log has to be judged without it.
PARTITION = small_partition(index_interval_bytes=4096)
INDEXED = small_partition()


@cache
def undamaged(depth: IndexDepth, *, is_indexed: bool = False) -> tuple[Built, ...]:
    built = tuple(build(INDEXED if is_indexed else PARTITION, options(depth)))
    assert [each.outcome["outcome"] for each in built] == ["indexed"] * 3
    return built


class _NotingStore(MemoryStore):
    """Notes of which objects content or size were asked."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        super().__init__(objects)
        self.asked = set[str]()

    def _content(self, name: str) -> bytes:
        self.asked.add(name)
        return super()._content(name)


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """A sound segment beside the damaged one: what its build is given, and the objects that the build reads."""

    work: SegmentWork
    asked: frozenset[str]
    built: Built


@cache
def _neighbours(depth: IndexDepth, *, is_indexed: bool) -> tuple[_Neighbour, _Neighbour]:
    whole, objects = undamaged(depth, is_indexed=is_indexed), (INDEXED if is_indexed else PARTITION).objects

    def neighbour(at: int) -> _Neighbour:
        layout = LocalTieredStorageLayout(store=(store := _NotingStore(objects)))
        work = list_works(layout)[at]
        store.asked.clear()
        assert build_works(layout, [work], options(depth)) == [whole[at]]
        return _Neighbour(work, frozenset(store.asked), whole[at])

    return neighbour(0), neighbour(2)


def build_between_neighbours(damaged: Partition, depth: IndexDepth, *, is_indexed: bool = False) -> Built:
    """The segment in the middle; its neighbours are what they are without the damage, byte for byte. One of these is
    built again only if the damage is in an object that its build reads: from the same bytes it would be the same."""
    layout = LocalTieredStorageLayout(store=MemoryStore(damaged.objects))
    first, work, last = list_works(layout)
    before, after = _neighbours(depth, is_indexed=is_indexed)
    assert (first, last) == (before.work, after.work)
    sound = (INDEXED if is_indexed else PARTITION).objects
    for each in (before, after):
        if any(damaged.objects.get(name) != sound[name] for name in each.asked):
            assert build_works(layout, [each.work], options(depth)) == [each.built]
    (built,) = build_works(layout, [work], options(depth))
    return built


def quarantined(built: Built, suffix: str) -> Row | None:
    """The outcome, with every fact there must be; None of a segment that was indexed."""
    row = built.outcome
    if row["outcome"] == OutcomeKind.INDEXED:
        assert (row["reason"], row["message"], row["object_name"], row["position"]) == (None, None, None, None)
        return None
    assert row["outcome"] == OutcomeKind.QUARANTINED
    assert row["reason"] in {reason.value for reason in Reason}
    assert row["message"]
    assert row["expected"]
    assert row["found"]
    assert str(row["object_name"]).endswith(suffix)
    return row


def plan_of(built: list[Built] | tuple[Built, ...]) -> IncarnationPlan:
    """What lookups would be served of these segments; the newest checkpoint tells the lineage."""
    rows = [each.outcome for each in built]
    facts = [
        SegmentFacts(
            topic_id="",
            segment_id=str(row["segment_id"]),
            start_offset=integer_of(row["start_offset"]),
            written_ms=None,
            is_usable=True,
            end_offset=integer_of(row["end_offset"]),
            leader_epochs=_epochs(row["segment_leader_epochs"]),
            counted_from_offset=integer_of(row["counted_from_offset"]),
        )
        for row in rows
    ]
    (plan,) = plan_partition(facts, None, {"": _epochs(rows[-1]["leader_epoch_checkpoint"])}, {})
    return plan


def integer_of(value: object) -> int:
    assert isinstance(value, int)
    return value


def _epochs(value: object) -> tuple[tuple[int, int], ...]:
    assert isinstance(value, list)
    return tuple((each["leader_epoch"], each["start_offset"]) for each in value)
