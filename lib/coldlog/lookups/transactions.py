"""Find segments and aborted transactions of a partition in the tables, without an engine.

The answers are those of the SQL functions of the same names. Files are opened at the first question, in their newest
version or that of `as_of_ms`, and again at the first question after `refresh`. `TableReader` reads only row groups that
may hold an answer. All threads may use one object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.lookups.served_index import ServedIndex, WarehouseFiles, list_warehouse_files
from coldlog.model.arguments import check_partition, whole_number
from coldlog.model.transactions import AbortedTransaction, FoundSegment, FoundTxnSegment
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.table_files import TableFiles, is_newest, list_table_files
from coldlog.tables.delta.files.table_reader import KeptParts, TableReader, Within
from coldlog.tables.delta.locations import plain_location
from coldlog.tables.delta.manifest import Manifests, hold_to_manifest

_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1
_KEEP_BYTES = 64 << 20
_FOUND_COLUMNS = ("segment_id", "start_offset", "end_offset", "leader_epoch", "is_certain")
_PLACE_COLUMNS = ("topic", "partition", "topic_id")
_TXN_SEGMENT_COLUMNS = (*_PLACE_COLUMNS, *_FOUND_COLUMNS, "epoch_from_offset", "log_from_offset", "to_offset")
_ENTRY_COLUMNS = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
_ABORTED_COLUMNS = (*_PLACE_COLUMNS, "segment_id", "build_number", *_ENTRY_COLUMNS)
_SEGMENT_COLUMNS = (
    *_PLACE_COLUMNS, "segment_id", "start_offset", "end_offset", "announced_end_offset", "announced_leader_epochs",
    "segment_leader_epochs", "txn_index_empty", "served_build_number", "served_from_offset", "served_to_offset",
)  # fmt: skip
_Row = dict[str, object]
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class _Asked:
    """The current incarnation of a partition."""

    topic: str
    partition: int
    topic_id: str


class SegmentQuestions:
    """Answers from the warehouse at `uri`. If a file cannot be read, it raises `RetriableError`."""

    def __init__(self, uri: str, as_of_ms: int | None = None) -> None:
        self._uri = uri
        self._as_of_ms = as_of_ms
        self._lock = threading.Lock()
        self._open: _OpenTables | None = None
        self._rows_read = 0

    def next_segment_with_txn_index(
        self, topic: str, partition: int, leader_epoch: int | None, offset: int
    ) -> FoundTxnSegment | None:
        """Return the first segment from an offset on that may hold aborted transactions; None if there is none.

        With a leader epoch: Kafka's RemoteLogMetadataManager.nextSegmentWithTxnIndex. With None: in any epoch.
        """
        number, epoch, at = _checked(topic, partition, leader_epoch, offset)
        return self._ask(topic, number, lambda tables, asked: tables.next_with_aborts(asked, epoch, at))

    def segment_for_offset(
        self, topic: str, partition: int, leader_epoch: int | None, offset: int
    ) -> FoundSegment | None:
        """Return the segment that has the offset in this leader epoch; None if there is none.

        With a leader epoch: Kafka's RemoteLogMetadataManager.remoteLogSegmentMetadata. With None: in any epoch.
        """
        number, epoch, at = _checked(topic, partition, leader_epoch, offset)
        return self._ask(topic, number, lambda tables, asked: tables.holding(asked, epoch, at))

    def aborted_transactions(
        self, topic: str, partition: int, fetch_offset: int, upper_bound_offset: int
    ) -> list[AbortedTransaction]:
        """Return the transactions that begin before `upper_bound_offset` and whose abort marker is at or after
        `fetch_offset`, ordered by their first offset."""
        number = check_partition(topic, partition)
        begin, bound = (
            whole_number(name, value, _LEAST, _GREATEST + 1)
            for name, value in (("fetch_offset", fetch_offset), ("upper_bound_offset", upper_bound_offset))
        )
        found = self._ask(
            topic, number, lambda tables, asked: tables.aborted(asked, begin, bound) if begin < bound else []
        )
        return found or []

    @property
    def rows_read(self) -> int:
        """The number of table rows read from storage so far; rows answered from memory do not count."""
        tables = self._open
        return self._rows_read + (0 if tables is None else tables.rows_read)

    def refresh(self) -> None:
        """Answer from the newest version from now on, or again from that of `as_of_ms`."""
        with self._lock:
            self._close()

    def close(self) -> None:
        """Close the files; a later question opens them again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._rows_read += self._open.rows_read
            self._open.close()
            self._open = None

    def _ask(self, topic: str, partition: int, ask: Callable[[_OpenTables, _Asked], _Answer]) -> _Answer | None:
        """Return what the open tables answer; None for a partition that the warehouse does not know."""
        with self._lock:
            tables = self._tables()
            asked = tables.asked(topic, partition)
            return None if asked is None else ask(tables, asked)

    def _tables(self) -> _OpenTables:
        if self._open is None:
            self._open = _OpenTables(*_list_files(self._uri, self._as_of_ms))
        return self._open


def _checked(topic: object, partition: object, leader_epoch: object, offset: object) -> tuple[int, int | None, int]:
    epoch = None if leader_epoch is None else whole_number("leader_epoch", leader_epoch, -(2**31), 2**31)
    return check_partition(topic, partition), epoch, whole_number("offset", offset, _LEAST, _GREATEST + 1)


def _list_files(uri: str, as_of_ms: int | None) -> tuple[WarehouseFiles, TableFiles, TableFiles]:
    """List files that match: index rows of superseded builds are removed after `segments` no longer names them."""
    warehouse, manifests = plain_location(uri).rstrip("/"), Manifests(uri)
    while True:
        lookups = list_warehouse_files(uri, as_of_ms=as_of_ms, manifests=manifests)
        offsets = ("first_offset", "last_offset")
        aborted = list_table_files(
            f"{warehouse}/{TXN_INDEX.name}", TXN_INDEX, ("topic", "partition", *offsets), as_of_ms=as_of_ms
        )
        following = list_table_files(
            f"{warehouse}/{TXN_SEGMENTS.name}", TXN_SEGMENTS, TXN_SEGMENTS.skipping_columns, as_of_ms=as_of_ms
        )
        if is_newest(lookups.segments, SEGMENTS, as_of_ms=as_of_ms):
            number, is_past = lookups.publish_number, as_of_ms is not None
            aborted, following = hold_to_manifest(manifests, [aborted, following], number, is_past=is_past)
            return lookups, aborted, following
        # A run published meanwhile: list all again.


class _OpenTables:
    """One version of the tables."""

    def __init__(self, lookups: WarehouseFiles, aborted: TableFiles, following: TableFiles) -> None:
        def whole(rows: pa.Table) -> tuple[pa.Table, int]:
            return rows, rows.nbytes

        self._index = ServedIndex(lookups)
        self._segments = TableReader(lookups.segments, SEGMENTS, _SEGMENT_COLUMNS, whole, kept=KeptParts(_KEEP_BYTES))
        self._aborted = TableReader(aborted, TXN_INDEX, _ABORTED_COLUMNS, whole, kept=KeptParts(_KEEP_BYTES))
        self._following = TableReader(following, TXN_SEGMENTS, _TXN_SEGMENT_COLUMNS, whole, kept=KeptParts(_KEEP_BYTES))

    @property
    def rows_read(self) -> int:
        readers = (self._segments, self._aborted, self._following)
        return self._index.rows_read + sum(reader.counts.rows for reader in readers)

    def asked(self, topic: str, partition: int) -> _Asked | None:
        facts = self._index.find_facts(topic, partition)
        return None if facts is None else _Asked(topic, partition, facts.topic_id)

    def next_with_aborts(self, asked: _Asked, leader_epoch: int | None, offset: int) -> FoundTxnSegment | None:
        begins = "log_from_offset" if leader_epoch is None else "epoch_from_offset"
        further = {begins: (_LEAST, offset), "to_offset": (offset, _GREATEST)}
        if leader_epoch is not None:
            further["leader_epoch"] = (leader_epoch, leader_epoch)
        for row in _rows(self._following, asked, "to_offset", further):
            return FoundTxnSegment(**{name: row[name] for name in _FOUND_COLUMNS})  # type: ignore[arg-type]  # a row
        return None

    def holding(self, asked: _Asked, leader_epoch: int | None, offset: int) -> FoundSegment | None:
        serves = {"served_from_offset": (_LEAST, offset), "served_to_offset": (offset, _GREATEST)}
        # An announced end may be above the end that was read: then the second search finds it.
        for near in ({"end_offset": (offset, _GREATEST)}, {}):
            for row in _rows(self._segments, asked, "start_offset", serves, near):
                epoch = _leader_epoch_at(row, offset)
                if epoch is None or leader_epoch not in (None, epoch):
                    return None
                ends = (row["end_offset"], row["announced_end_offset"])
                return FoundSegment(
                    segment_id=str(row["segment_id"]),
                    start_offset=row["start_offset"],  # type: ignore[arg-type]  # a row of segments
                    end_offset=max(end for end in ends if isinstance(end, int)),
                    leader_epoch=epoch,
                )
        return None

    def aborted(self, asked: _Asked, fetch_offset: int, bound: int) -> list[AbortedTransaction]:
        meets = {"last_offset": (fetch_offset, _GREATEST), "first_offset": (_LEAST, bound - 1)}
        entries = list(_rows(self._aborted, asked, "last_offset", meets))
        served = self._served(asked, entries) if entries else {}
        found = {
            tuple(int(str(entry[name])) for name in _ENTRY_COLUMNS)
            for entry in entries
            if (offsets := served.get((entry["segment_id"], entry["build_number"]))) is not None
            and offsets[0] <= int(str(entry["last_offset"])) <= offsets[1]
        }
        return sorted(
            (AbortedTransaction(**dict(zip(_ENTRY_COLUMNS, entry, strict=True))) for entry in found),
            key=lambda one: (one.first_offset, one.producer_id, one.last_offset),
        )

    def _served(self, asked: _Asked, entries: list[_Row]) -> dict[tuple[object, object], tuple[int, int]]:
        """Return the `marker_offsets` of the segments of the entries, by segment id and build."""
        markers = [int(str(entry["last_offset"])) for entry in entries]
        found: dict[tuple[object, object], tuple[int, int]] = {}
        before = {"served_from_offset": (_LEAST, max(markers))}
        for near in ({"end_offset": (min(markers), _GREATEST)}, {}):
            for row in _rows(self._segments, asked, "start_offset", before, near):
                if not row["txn_index_empty"]:
                    key = row["segment_id"], row["served_build_number"]
                    found[key] = marker_offsets(row)
            if all((entry["segment_id"], entry["build_number"]) in found for entry in entries):
                break
        return found

    def close(self) -> None:
        for each in (self._index, self._segments, self._aborted, self._following):
            each.close()


def _rows(
    reader: TableReader[pa.Table], asked: _Asked, order_by: str, within: Within, near: Within | None = None
) -> Iterator[_Row]:
    """Yield the partition's rows with all columns of `within` in their ranges; `near` narrows down what is read."""
    place: dict[str, object] = {"topic": asked.topic, "partition": asked.partition}
    known = {name: bounds for name, bounds in within.items() if name != "served_to_offset"}
    further = {**known, **(near or {})}
    for _, rows in reader.iter_parts({name: (at, at) for name, at in place.items()}, order_by, further):
        is_wanted = pc.equal(rows["topic_id"], asked.topic_id)
        for name, value in place.items():
            is_wanted = pc.and_(is_wanted, pc.equal(rows[name], value))
        for name, (least, greatest) in within.items():
            is_wanted = pc.and_(is_wanted, pc.greater_equal(rows[name], least))
            is_wanted = pc.and_(is_wanted, pc.less_equal(rows[name], greatest))
        yield from rows.filter(is_wanted).to_pylist()


def is_cut_at_end(row: Mapping[str, object]) -> bool:
    """Whether a segment does not serve its last offsets: another leader's log has them."""
    last, *ends = (row[f"{name}_offset"] for name in ("served_to", "end", "announced_end"))
    assert isinstance(last, int)
    return any(isinstance(end, int) and last < end for end in ends)


def marker_offsets(row: Mapping[str, object]) -> tuple[int, int]:
    """Return the offsets, inclusive, at which a marker in a served segment counts: those that it serves. If it serves
    to its end, a marker behind them is in a hole of unknown length, and counts."""
    first, last = row["served_from_offset"], row["served_to_offset"]
    assert isinstance(first, int)
    assert isinstance(last, int)
    return first, last if is_cut_at_end(row) else _GREATEST


def _leader_epoch_at(row: Mapping[str, object], offset: int) -> int | None:
    """Return the leader epoch of an offset that the segment serves; the first one begins where the segment does."""
    epochs = row["announced_leader_epochs"]
    epochs = row["segment_leader_epochs"] if epochs is None else epochs
    assert epochs is None or isinstance(epochs, list)
    found = None
    for each in epochs or ():
        if found is None or each["start_offset"] <= offset:
            found = int(each["leader_epoch"])
    return found
