"""Find aborted transactions in the transaction indexes of the archive.

This is for an archive whose metadata is known and whose segments are not indexed. The walk is that of a broker: it
begins at the segment that holds the fetch offset, reads the transaction index of each segment that may have entries,
and stops at an entry whose last stable offset has reached the bound. If the metadata says that an index is empty, no
object is read (KIP-1058). If it says nothing, the index is looked for. An index of 0 bytes is as empty as a missing
one.

For indexed segments, the SQL function `aborted_transactions` gives the same answer without reading an object.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment, SegmentFileKind
from coldlog.formats.kafka.txn_index import read_txn_index


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnSegment:
    """A segment of the walk; `txn_index_empty` as in `segments`: None if unknown."""

    segment: ListedSegment
    end_offset: int
    txn_index_empty: bool | None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AbortedEntry:
    """An aborted transaction, as in the index."""

    last_offset: int
    first_offset: int
    producer_id: int
    last_stable_offset: int


def collect_aborted_transactions(
    layout: ArchiveLayout, segments: Iterable[TxnSegment], fetch_offset: int, upper_bound_offset: int
) -> list[AbortedEntry]:
    """Collect, once each, transactions with a marker at or after `fetch_offset` that begin before `upper_bound_offset`.

    `segments` are those of one partition, ordered by start offset. An index that cannot be read raises `ArchiveError`.
    """
    found: set[AbortedEntry] = set()
    for segment in segments:
        if segment.end_offset < fetch_offset or segment.txn_index_empty:
            continue
        for entry in _read_entries(layout, segment.segment):
            if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound_offset:
                found.add(entry)
            if entry.last_stable_offset >= upper_bound_offset:
                return sorted(found)
    return sorted(found)


def _read_entries(layout: ArchiveLayout, segment: ListedSegment) -> list[AbortedEntry]:
    if not layout.has_file(segment, SegmentFileKind.TXN_INDEX):
        return []
    content = layout.read_small_file(segment, SegmentFileKind.TXN_INDEX)
    index = read_txn_index(content, base_offset=segment.start_offset)
    columns = (index.last_offsets, index.first_offsets, index.producer_ids, index.last_stable_offsets)
    return [
        AbortedEntry(last_offset=last, first_offset=first, producer_id=producer, last_stable_offset=stable)
        for last, first, producer, stable in zip(*(column.tolist() for column in columns), strict=True)
    ]
