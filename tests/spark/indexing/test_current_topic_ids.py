"""Test that log starts are asked for the incarnations that lookups use, by the rows of `segments`."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from coldlog.indexing.publish.planned_rows import plan_all_partitions
from coldlog.indexing.scan.log_starts import _current_topic_ids
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tables.definitions.segments import SEGMENTS
from tables.scattered_tables import write

_SCHEMA = pa.schema([field.with_nullable(True) for field in SEGMENTS.arrow_schema])
_TIMES = ("copy_started_ms", "event_timestamp_ms", "log_modified_ms")


def _row(random: Random, number: int) -> dict[str, Any]:
    state = random.choice(list(RemoteLogSegmentState)).name
    return dict.fromkeys(SEGMENTS.column_names) | {
        "topic": "orders",
        "partition": random.randrange(30),
        "topic_id": random.choice("abc"),
        "segment_id": str(number),
        "start_offset": 0,
        "state": state,
        "state_source": "events",
        "is_listed": False,
        "objects": [],
        "missing_kinds": [],
        "index_status": "gone" if state.startswith("DELETE") else "incomplete",
        **{name: random.choice((None, random.randrange(4))) for name in _TIMES},
    }


def test_log_starts_are_asked_for_the_incarnations_that_a_plan_finds_current(tmp_path: Path) -> None:
    for seed in range(10):
        random = Random(seed)
        rows = [_row(random, number) for number in range(150)]
        planned = plan_all_partitions(pa.Table.from_pylist(rows, schema=_SCHEMA), {}, {}).to_pylist()
        current = {(row["topic"], row["partition"]): row["topic_id"] for row in planned if row["is_current"]}
        write(tmp_path / str(seed), SEGMENTS, rows)
        assert _current_topic_ids(str(tmp_path / str(seed))) == current
