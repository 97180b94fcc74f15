"""Decode the rows of partition_metadata.

A row is one incarnation of a partition. Of those that one topic has had, one is current.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.index.log_start import LogStartSource
from coldlog.index.unserved_ranges import UnservedRange
from coldlog.model.incarnations import incarnation_name


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

    @property
    def first_offset(self) -> int:
        """Return where the log begins, as far as the archive knows."""
        known = self.log_start_offset if self.log_start_offset is not None else self.earliest_offset
        return 0 if known is None else known

    @property
    def local_start_offset(self) -> int:
        """Return where the search of segments that are not archived begins."""
        return self.first_offset if self.latest_tiered_offset is None else self.latest_tiered_offset + 1

    @property
    def routing_max_timestamp_ms(self) -> int | None:
        """Return the timestamp after which nothing is archived; None if nothing is. A row of an earlier release does
        not have that of all finished segments: then that of the served records counts."""
        finished = self.finished_max_timestamp_ms
        return self.max_timestamp_ms if finished is None else finished

    @property
    def leader_epoch(self) -> int | None:
        """Return the newest leader epoch that is known."""
        return self.lineage[-1][0] if self.lineage else None

    def leader_epoch_at(self, offset: int) -> int | None:
        """Return the epoch of the leader that wrote `offset`."""
        return next((epoch for epoch, start in reversed(self.lineage) if start <= offset), None)


PARTITION_COLUMNS = (
    "topic", "partition", "topic_id", "is_current", "log_start_source", "log_start_offset", "earliest_offset",
    "latest_tiered_offset", "max_timestamp_ms", "max_timestamp_offset", "finished_max_timestamp_ms", "stable_offset",
    "leader_epoch_lineage", "unserved_ranges",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartitionRows:
    places: dict[tuple[str, int], int]
    columns: dict[str, list[int | None]]
    topic_ids: list[str]
    lineage_bounds: list[int]
    lineages: list[tuple[int, int]]
    unserved_ranges: list[tuple[UnservedRange, ...] | None]
    log_start_sources: list[str | None]

    def facts(self, at: int) -> PartitionFacts:
        lineage = tuple(self.lineages[self.lineage_bounds[at] : self.lineage_bounds[at + 1]])
        numbers = {name: column[at] for name, column in self.columns.items()}
        return PartitionFacts(
            topic_id=self.topic_ids[at],
            lineage=lineage,
            unserved_ranges=self.unserved_ranges[at],
            is_log_start_known=self.log_start_sources[at] != LogStartSource.CHECKPOINT_LOST,
            **numbers,
        )


def decode_partitions(rows: pa.Table) -> tuple[PartitionRows, int]:
    """Decode the current incarnations, by the topic's name."""
    current = rows.filter(rows["is_current"]).combine_chunks()
    return _decode(current, current["topic"].to_pylist())


def decode_incarnations(rows: pa.Table) -> tuple[PartitionRows, int]:
    """Decode all incarnations that have a name of their own, by this name."""
    topics = zip(rows["topic"].to_pylist(), rows["topic_id"].to_pylist(), strict=True)
    names = (incarnation_name(topic, topic_id) for topic, topic_id in topics)
    places = list(zip(names, rows["partition"].to_pylist(), strict=True))
    uses = Counter(places)
    named = {at: name for at, (name, partition) in enumerate(places) if name and uses[name, partition] == 1}
    return _decode(rows.take(pa.array(list(named), pa.int64())).combine_chunks(), list(named.values()))


def _decode(rows: pa.Table, names: list[str]) -> tuple[PartitionRows, int]:
    places = zip(names, rows["partition"].to_pylist(), strict=True)
    lineages = rows["leader_epoch_lineage"]
    lengths = pc.fill_null(pc.list_value_length(lineages), 0).to_numpy()
    entries = pc.list_flatten(lineages).to_pylist()
    decoded = PartitionRows(
        places={place: at for at, place in enumerate(places)},
        columns={name: rows[name].to_pylist() for name in PARTITION_COLUMNS[5:-2]},
        topic_ids=rows["topic_id"].to_pylist(),
        lineage_bounds=[0, *np.cumsum(lengths).tolist()],
        lineages=[(entry["leader_epoch"], entry["start_offset"]) for entry in entries],
        unserved_ranges=_decode_unserved(rows),
        log_start_sources=rows["log_start_source"].to_pylist(),
    )
    return decoded, rows.nbytes * 4


def _decode_unserved(rows: pa.Table) -> list[tuple[UnservedRange, ...] | None]:
    """Decode the ranges; None if a release without them wrote the row."""
    stored = rows["unserved_ranges"].to_pylist()
    return [None if ranges is None else tuple(UnservedRange(**each) for each in ranges) for ranges in stored]
