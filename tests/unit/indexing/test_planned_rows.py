"""Test what the plan of a partition reads from its rows of `segments`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from coldlog.indexing.publish.planned_rows import READ_COLUMNS, plan_all_partitions
from coldlog.model.states import IndexStatus
from coldlog.tables.definitions.segments import SEGMENTS

_COLUMNS = (*READ_COLUMNS, "leader_epoch_checkpoint")
_SCHEMA = pa.schema([SEGMENTS.arrow_schema.field(name).with_nullable(True) for name in _COLUMNS])


def _epochs(*entries: tuple[int, int]) -> list[dict[str, int]]:
    return [{"leader_epoch": epoch, "start_offset": offset} for epoch, offset in entries]


@pytest.mark.parametrize(
    ("announced", "record_count", "served_to"),
    [
        pytest.param(None, 48, 49, id="nothing"),
        pytest.param(None, 50, 9, id="nothing, but a record for each offset"),
        pytest.param([], 48, 49, id="no epoch"),
        pytest.param(_epochs((0, 0), (1, 10)), 48, 49, id="the epochs of the lineage"),
        pytest.param(_epochs((0, 0), (1, 12)), 48, 9, id="other epochs"),
    ],
)
def test_epochs_begin_with_their_first_batches_only_if_none_were_announced(
    announced: list[dict[str, int]] | None, record_count: int, served_to: int
) -> None:
    """Compaction removed the batches at offsets 10 and 11. A log with a record for each offset is not compacted: there
    a batch has a wrong leader epoch."""
    row: dict[str, Any] = dict.fromkeys(_COLUMNS) | {
        "topic": "orders",
        "partition": 0,
        "topic_id": "A" * 22,
        "start_offset": 0,
        "end_offset": 49,
        "record_count": record_count,
        "segment_id": "a",
        "state": "COPY_SEGMENT_FINISHED",
        "index_status": IndexStatus.INDEXED,
        "counted_from_offset": 0,
        "segment_leader_epochs": _epochs((0, 0), (1, 12)),
        "announced_leader_epochs": announced,
        "leader_epoch_checkpoint": _epochs((0, 0), (1, 10)),
    }
    segment, partition = plan_all_partitions(pa.Table.from_pylist([row], schema=_SCHEMA), {}, {}).to_pylist()
    assert (segment["served_to_offset"], segment["is_within_lineage"]) == (served_to, served_to == 49)
    assert partition["latest_tiered_offset"] == served_to


@pytest.mark.parametrize("status", [IndexStatus.GONE, IndexStatus.QUARANTINED, IndexStatus.PENDING])
def test_announced_leader_epochs_of_a_lost_segment_count(status: IndexStatus) -> None:
    known: dict[str, Any] = dict.fromkeys(_COLUMNS) | {"topic": "orders", "partition": 0, "topic_id": "A" * 22}
    known |= {"state": "COPY_SEGMENT_FINISHED", "state_source": "events", "counted_from_offset": 0}
    first = known | {"segment_id": "a", "start_offset": 0, "end_offset": 9, "index_status": IndexStatus.INDEXED}
    first |= {"segment_leader_epochs": _epochs((0, 0)), "leader_epoch_checkpoint": _epochs((0, 0))}
    last = known | {"segment_id": "b", "start_offset": 10, "index_status": status, "announced_end_offset": 19}
    last |= {"announced_leader_epochs": _epochs((0, 10), (1, 12))}
    *_, partition = plan_all_partitions(pa.Table.from_pylist([first, last], schema=_SCHEMA), {}, {}).to_pylist()
    assert partition["leader_epoch_lineage"] == _epochs((0, 0), (1, 12))
    assert partition["latest_tiered_offset"] == 9
