"""Count the requests that were not answered in time."""

from __future__ import annotations

import time
import uuid

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.model.list_offsets import TIMEOUT_SINCE_VERSION, ErrorCode


def expiration_rows(answers: pa.Table, default_timeout_ms: int, requests: pa.Table) -> list[dict[str, object]]:
    """Make the rows of list_offsets_expirations: one for each partition with answers REQUEST_TIMED_OUT.

    `answers` are those of `list_offsets` to `requests`.
    """
    is_late = pc.equal(answers["error_code"], ErrorCode.REQUEST_TIMED_OUT.value)
    timeouts = requests["timeout_ms"]
    has_timeout = pc.and_(pc.greater(timeouts, 0), pc.greater_equal(requests["version"], TIMEOUT_SINCE_VERSION))
    timeouts = pc.if_else(has_timeout, timeouts, pa.scalar(default_timeout_ms, pa.int32())).cast(pa.int64())
    late = answers.select(["topic", "partition"]).append_column("timeout_ms", timeouts).filter(is_late)
    counted = late.group_by(["topic", "partition"]).aggregate([("timeout_ms", "count"), ("timeout_ms", "max")])
    run_id, now_ms = uuid.uuid4().hex, time.time_ns() // 1_000_000
    return [
        {
            "run_id": run_id,
            "expired_ms": now_ms,
            "topic": row["topic"],
            "partition": row["partition"],
            "request_count": row["timeout_ms_count"],
            "timeout_ms": row["timeout_ms_max"],
        }
        for row in counted.to_pylist()
    ]
