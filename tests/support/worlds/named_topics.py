"""An endpoint whose tables have topics and partitions with ends, and no segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from builders.segment_builder import uuid_text_of
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.records.fetch.record_source import RecordSource
from coldlog.serve.archive_view import ArchiveView
from coldlog.serve.context import Context
from coldlog.serve.security.rights import ALL_RIGHTS, Names, Rights
from coldlog.serve.threads import Threads
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from endpoint_context import endpoint_context
from tables.scattered_tables import Row, write
from worlds.sidecar_world import LIMITS

_WITHOUT_ROWS = (SEGMENTS, OFFSET_INDEX, TIME_INDEX, INTERVAL_INDEX, TXN_INDEX, QUARANTINE)
START, END, EPOCH = 2, 10, 3
"""Log start, end and leader epoch of each partition."""


@contextmanager
def named_topics(folder: Path, counts: Mapping[str, int], **others: Any) -> Iterator[Context]:
    """The context of an endpoint that offers so many partitions of each topic. `others` replace its fields."""
    rows: list[Row] = [
        {
            "topic": topic,
            "partition": number,
            "topic_id": uuid_text_of(topic),
            "earliest_offset": START,
            "latest_tiered_offset": END - 1,
            "leader_epoch_lineage": [{"leader_epoch": EPOCH, "start_offset": 0}],
        }
        for topic, count in counts.items()
        for number in range(count)
    ]
    write(folder, PARTITION_METADATA, rows)
    for table in _WITHOUT_ROWS:
        write(folder, table, [])
    source = RecordSource(str(folder), lambda: None, LIMITS)  # type: ignore[arg-type,return-value]  # no log is read
    with closing(source), closing(Threads("test", 2)) as threads:
        view = ArchiveView(str(folder), source, LookupOptions())
        yield endpoint_context(view, threads, **{"timeout_ms": 60_000, "is_local": True} | others)


def rights_to(visible: frozenset[str] | None) -> Rights:
    """Rights to these topics and to no group; None: all rights."""
    return ALL_RIGHTS if visible is None else Rights(topics=Names(literal=visible), groups=Names())
