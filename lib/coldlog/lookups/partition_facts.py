"""Decode the rows of partition_metadata.

A row is one incarnation of a partition. Of those that one topic has had, one is current.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.index.log_start import LogStartSource
from coldlog.index.unserved_ranges import UnservedRange
from coldlog.lookups.index_rows import NOTHING, Int64s, numbers_of
from coldlog.model.incarnations import incarnation_name
from coldlog.model.list_offsets import UNKNOWN_EPOCH

NO_LIMIT = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """What limits answers from the archive: of one partition, or arrays with one entry for each of many. Where it is
    not known, `routing_max_ms` and `stable_offset` are NO_LIMIT, `leader_epoch` is -1."""

    routing_max_ms: Int64s | int
    local_start: Int64s | int
    stable_offset: Int64s | int
    leader_epoch: Int64s | int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """A row of partition_metadata; None means NULL."""

    topic_id: str
    log_start_offset: int | None
    earliest_offset: int | None
    latest_tiered_offset: int | None
    max_timestamp_ms: int | None
    max_timestamp_offset: int | None
    stable_offset: int | None
    lineage: tuple[tuple[int, int], ...]
    finished_max_timestamp_ms: int | None = None
    unserved_ranges: tuple[UnservedRange, ...] | None = None
    is_log_start_known: bool = True
    """False: the log starts at `log_start_offset` or later."""
    is_start_first_segment: bool = False
    """True: the log starts at `log_start_offset` or earlier, as nothing is known of the offsets before it."""

    @property
    def first_offset(self) -> int:
        """Return where the log begins, as far as the archive knows."""
        known = self.log_start_offset if self.log_start_offset is not None else self.earliest_offset
        return 0 if known is None else known

    @property
    def unknown_range(self) -> UnservedRange | None:
        """Return the offsets before the log start that were deleted or are lost; None if there are none."""
        if not self.is_start_first_segment or not self.lineage:
            return None
        first, last = self.lineage[0][1], self.first_offset - 1
        return UnservedRange(from_offset=first, to_offset=last, max_timestamp_bound_ms=None)

    @property
    def local_start_offset(self) -> int:
        """Return where the search of segments that are not archived begins."""
        return self.first_offset if self.latest_tiered_offset is None else self.latest_tiered_offset + 1

    @property
    def log_end_offset(self) -> int | None:
        """Return where the log ends, with the offsets at its end that no segment serves; None if it is not known."""
        at_end = self.unserved_ranges[-1] if self.unserved_ranges else None
        if at_end is None or not at_end.reaches_past(self.latest_tiered_offset):
            return self.local_start_offset
        return None if at_end.to_offset is None else at_end.to_offset + 1

    @property
    def routing_max_timestamp_ms(self) -> int | None:
        """Return the timestamp after which nothing is archived; None if nothing is. A row of an earlier release does
        not have that of all finished segments: then that of the served records counts."""
        finished = self.finished_max_timestamp_ms
        return self.max_timestamp_ms if finished is None else finished

    @property
    def limits(self) -> ArchiveLimits:
        """Return what limits answers from the archive."""
        routing_max_ms, epoch = self.routing_max_timestamp_ms, self.leader_epoch
        return ArchiveLimits(
            routing_max_ms=NO_LIMIT if routing_max_ms is None else routing_max_ms,
            local_start=self.local_start_offset,
            stable_offset=NO_LIMIT if self.stable_offset is None else self.stable_offset,
            leader_epoch=UNKNOWN_EPOCH if epoch is None else epoch,
        )

    @property
    def has_gaps(self) -> bool:
        """Return whether an answer may not be exact, or that is not known."""
        return self.unserved_ranges != () or self.unknown_range is not None

    @property
    def leader_epoch(self) -> int | None:
        """Return the newest leader epoch that is known."""
        return self.lineage[-1][0] if self.lineage else None

    def leader_epoch_at(self, offset: int) -> int | None:
        """Return the epoch of the leader that wrote `offset`."""
        return next((epoch for epoch, start in reversed(self.lineage) if start <= offset), None)


_NUMBERS = (
    "log_start_offset", "earliest_offset", "latest_tiered_offset", "max_timestamp_ms", "max_timestamp_offset",
    "finished_max_timestamp_ms", "stable_offset",
)  # fmt: skip
PARTITION_COLUMNS = (
    "topic", "partition", "topic_id", "is_current", "log_start_source", *_NUMBERS, "leader_epoch_lineage",
    "unserved_ranges",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRows:
    """Rows of partition_metadata, found by topic and partition. `topics` numbers the names, and `keys`, ascending, has
    number and partition of the row `order` at the same place. The other columns are in the order of the rows."""

    topics: dict[str, int]
    keys: Int64s
    order: Int64s
    topic_ids: pa.StringArray
    numbers: dict[str, Int64s]
    epochs: tuple[Int64s, Int64s, Int64s]
    """Where the lineage of each row begins, and the leader epochs and start offsets of all rows."""
    unserved_ranges: pa.ListArray
    is_log_start_lost: npt.NDArray[np.bool_]
    is_start_first_segment: npt.NDArray[np.bool_]

    def find(self, topic: str, partition: int) -> int | None:
        """Return the number of the row of a partition; None if it is not here."""
        number = self.topics.get(topic)
        if number is None or not 0 <= partition < 1 << 32:
            return None
        key = number << 32 | partition
        at = int(np.searchsorted(self.keys, key, side="right")) - 1
        return int(self.order[at]) if at >= 0 and self.keys[at] == key else None

    def partitions_of(self, topic: str) -> list[int]:
        """Return the partitions of a topic that are here."""
        number = self.topics.get(topic)
        if number is None:
            return []
        first, end = np.searchsorted(self.keys, [number << 32, (number + 1) << 32]).tolist()
        found: list[int] = (self.keys[first:end] & ((1 << 32) - 1)).tolist()
        return found

    def limits(self, rows: Int64s) -> ArchiveLimits:
        """Return `PartitionFacts.limits` of these rows."""
        known = {name: column[rows] for name, column in self.numbers.items()}
        first = _first_known(known["log_start_offset"], known["earliest_offset"], 0)
        tiered = known["latest_tiered_offset"]
        bounds, epochs, _ = self.epochs
        has_epoch = bounds[rows + 1] > bounds[rows]
        newest = epochs[np.where(has_epoch, bounds[rows + 1] - 1, 0)] if len(epochs) else UNKNOWN_EPOCH
        return ArchiveLimits(
            routing_max_ms=_first_known(known["finished_max_timestamp_ms"], known["max_timestamp_ms"], NO_LIMIT),
            local_start=np.where(tiered == NOTHING, first, tiered + 1),
            stable_offset=_first_known(known["stable_offset"], known["stable_offset"], NO_LIMIT),
            leader_epoch=np.where(has_epoch, newest, UNKNOWN_EPOCH),
        )

    def have_gaps(self, rows: Int64s) -> npt.NDArray[np.bool_]:
        """Return `PartitionFacts.has_gaps` of these rows."""
        ranges = pc.list_value_length(self.unserved_ranges.take(pa.array(rows)))
        bounds = self.epochs[0]
        has_unknown = self.is_start_first_segment[rows] & (bounds[rows + 1] > bounds[rows])
        found: npt.NDArray[np.bool_] = has_unknown | pc.not_equal(pc.fill_null(ranges, 1), 0).to_numpy(False)
        return found

    def facts(self, at: int) -> PartitionFacts:
        """Decode a row."""
        bounds, epochs, starts = self.epochs
        first, end = bounds[at : at + 2].tolist()
        numbers = ((name, int(column[at])) for name, column in self.numbers.items())
        ranges = self.unserved_ranges[at].as_py()
        return PartitionFacts(
            topic_id=self.topic_ids[at].as_py(),
            lineage=tuple(zip(epochs[first:end].tolist(), starts[first:end].tolist(), strict=True)),
            # A release without them wrote NULL.
            unserved_ranges=None if ranges is None else tuple(UnservedRange(**each) for each in ranges),
            is_log_start_known=not self.is_log_start_lost[at],
            is_start_first_segment=bool(self.is_start_first_segment[at]),
            **{name: None if number == NOTHING else number for name, number in numbers},
        )


def _first_known(first: Int64s, second: Int64s, otherwise: int) -> Int64s:
    return np.where(first != NOTHING, first, np.where(second != NOTHING, second, otherwise))


def decode_partitions(rows: pa.Table) -> tuple[PartitionRows, int]:
    """Decode the current incarnations, by the topic's name."""
    current = rows.filter(rows["is_current"]).combine_chunks()
    return _decode(current, current["topic"].combine_chunks())


def decode_incarnations(rows: pa.Table) -> tuple[PartitionRows, int]:
    """Decode all incarnations that have a name of their own, by this name."""
    topics = zip(rows["topic"].to_pylist(), rows["topic_id"].to_pylist(), strict=True)
    names = (incarnation_name(topic, topic_id) for topic, topic_id in topics)
    places = list(zip(names, rows["partition"].to_pylist(), strict=True))
    uses = Counter(places)
    named = {at: name for at, (name, partition) in enumerate(places) if name and uses[name, partition] == 1}
    chosen = rows.take(pa.array(list(named), pa.int64())).combine_chunks()
    return _decode(chosen, pa.array(list(named.values()), pa.string()))


def _decode(rows: pa.Table, names: pa.StringArray) -> tuple[PartitionRows, int]:
    numbered = names.dictionary_encode()
    topics = numbered.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    keys = topics << 32 | rows["partition"].to_numpy().astype(np.int64)
    order = np.argsort(keys, kind="stable")
    lineages = rows["leader_epoch_lineage"].combine_chunks()
    entries = lineages.flatten()
    lengths = pc.fill_null(pc.list_value_length(lineages), 0).to_numpy(zero_copy_only=False)
    decoded = PartitionRows(
        topics={name: number for number, name in enumerate(numbered.dictionary.to_pylist())},
        keys=keys[order],
        order=order,
        topic_ids=rows["topic_id"].combine_chunks(),
        numbers={name: numbers_of(rows[name]) for name in _NUMBERS},
        epochs=(
            np.concatenate(([0], np.cumsum(lengths))),
            entries.field("leader_epoch").to_numpy(zero_copy_only=False),
            entries.field("start_offset").to_numpy(zero_copy_only=False),
        ),
        unserved_ranges=rows["unserved_ranges"].combine_chunks(),
        is_log_start_lost=_is_source(rows, LogStartSource.CHECKPOINT_LOST),
        is_start_first_segment=_is_source(rows, LogStartSource.FIRST_SEGMENT),
    )
    return decoded, rows.nbytes + 100 * len(order) + 150 * len(decoded.topics)


def _is_source(rows: pa.Table, source: LogStartSource) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.fill_null(pc.equal(rows["log_start_source"], source.value), False).to_numpy()
    return found
