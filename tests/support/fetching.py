"""fetching: what does a consumer get that fetches and fetches again, and what should it get?"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment
from coldlog.fetcher import RecordFetcher
from coldlog.formats.limits import DecodeLimits
from coldlog.model.fetch import FetchedRecord, FetchedRecords
from coldlog.model.states import IsolationLevel
from coldlog.records.fetch.record_source import RecordSource
from contents.record_rows import Row, consumed
from stores.faulty_layout import FaultyLayout
from virtual_clock import VirtualClock

LIMITS = DecodeLimits(max_batch_bytes=64 << 20, max_decompressed_bytes=64 << 20)


def open_fetcher_over(
    uri: str, open_layout: Callable[[], ArchiveLayout], clock: VirtualClock | None = None
) -> RecordFetcher:
    """A fetcher whose pauses are half as random as they can be, and pass at once."""
    return RecordFetcher(RecordSource(uri, open_layout, LIMITS), clock=clock or VirtualClock(), chance=lambda: 0.5)


@dataclass(slots=True)
class Walk:
    """A partition fetched from an offset to its end: all records, and each answer."""

    records: list[FetchedRecord] = field(default_factory=list)
    answers: list[FetchedRecords] = field(default_factory=list)


def fetch_all(
    fetcher: RecordFetcher,
    topic: str,
    partition: int,
    offset: int,
    max_bytes: int,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Walk:
    """Until a fetch does not get on; a failure is one of the test."""
    walk = Walk()
    while True:
        answer = fetcher.fetch_records(topic, partition, offset, max_bytes, isolation_level)
        assert isinstance(answer, FetchedRecords), str(answer)
        walk.answers.append(answer)
        if answer.next_offset == offset:
            assert answer.records == ()
            return walk
        assert all(offset <= each.offset < answer.next_offset for each in answer.records)
        walk.records += answer.records
        offset = answer.next_offset


@cache
def true_records(topic: str, partition: int) -> tuple[Row, ...]:
    """Every archived record that a consumer got of the broker."""
    return tuple(consumed(topic, partition))


def as_truth(records: Sequence[FetchedRecord], truths: Sequence[Row]) -> list[Row]:
    """Records in the form of truth/records, without what the truth says of brokers; both in the same order."""
    return [
        {
            "o": record.offset,
            "ts": record.timestamp_ms,
            "tt": record.timestamp_type.value,
            "le": record.leader_epoch,
            "k": _content(record.key, is_text=not isinstance(truth["k"], dict)),
            "v": _content(record.value, is_text=False),
            "h": [[name, _content(value, is_text=True)] for name, value in record.headers] or None,
        }
        for record, truth in zip(records, truths, strict=True)
    ]


def of_truth(truths: Sequence[Row]) -> list[Row]:
    """The same of the truth."""
    return [{name: truth.get(name) for name in ("o", "ts", "tt", "le", "k", "v", "h")} for truth in truths]


def _content(content: bytes | None, *, is_text: bool) -> Any:
    if content is None:
        return None
    return base64.b64encode(content).decode() if is_text else {"len": len(content), "crc32": zlib.crc32(content)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedLayout(FaultyLayout):
    """An ArchiveLayout over another; `before_read` is called with the id of each segment that is read."""

    before_read: Callable[[str], None]

    def read_log_range(
        self, segment: ListedSegment, position: int, length: int, until: int | None = None
    ) -> memoryview:
        """The other's, if nothing was raised."""
        self.before_read(segment.segment_id)
        return FaultyLayout.read_log_range(self, segment, position, length, until)
