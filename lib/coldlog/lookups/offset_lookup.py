"""offset_lookup: what are the answers to many requests at once?

The reference rule: over the segments that serve a partition, the lowest offset at or after its log start whose record
has a timestamp at or after the one asked for, with that record's timestamp and leader epoch. Control records and
records of aborted transactions count, as in Kafka. With `broker_compatible` the answer is the one a broker gives from
the same segments: it commits to the first segment whose metadata promises a match, and answers nothing if that holds
none.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.lookups.queries import query_text
from coldlog.tables.offset_index import OFFSET_INDEX
from coldlog.tables.partition_metadata import PARTITION_METADATA
from coldlog.tables.segments import SEGMENTS
from coldlog.tables.time_index import TIME_INDEX
from coldlog.tables.warehouse import Warehouse

ANSWER_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("offset", pa.int64()),
        pa.field("offset_timestamp_ms", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("error", pa.string()),
    ]
)
UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"
UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"
_REQUESTS_A_QUERY = 200_000
_NO_LEADER_EPOCH = -1


def find_offsets_for_timestamps(warehouse: Warehouse, requests: pa.Table, *, broker_compatible: bool) -> pa.Table:
    """Answers of `ANSWER_SCHEMA`, one a request of `REQUEST_SCHEMA`, in the same order.

    `offset` is NULL where nothing was found; `error` is UNKNOWN_TOPIC_OR_PARTITION for a partition that the archive
    does not have, UNSUPPORTED_VERSION for a negative timestamp (as a broker answers those that are no sentinels), else
    NULL.
    """
    found = [
        _answer(warehouse, requests.slice(start, _REQUESTS_A_QUERY), broker_compatible)
        for start in range(0, max(requests.num_rows, 1), _REQUESTS_A_QUERY)
    ]
    return pa.concat_tables(found)


def _answer(warehouse: Warehouse, requests: pa.Table, broker_compatible: bool) -> pa.Table:
    spark = warehouse.spark
    spark.createDataFrame(requests).createOrReplaceTempView("coldlog_requests")
    tables = {table.name: warehouse.view(table) for table in (PARTITION_METADATA, SEGMENTS, OFFSET_INDEX, TIME_INDEX)}
    answers = spark.sql(query_text("offsets_for_timestamps"), args={**tables, "broker_compatible": broker_compatible})
    found = answers.toArrow().sort_by("request_index")
    is_negative = pc.less(requests.column("timestamp_ms"), 0)
    error = pc.if_else(
        is_negative,
        UNSUPPORTED_VERSION,
        pc.if_else(found.column("is_known"), pa.scalar(None, pa.string()), UNKNOWN_TOPIC_OR_PARTITION),
    )
    nothing = pa.scalar(None, pa.int64())
    epoch = found.column("leader_epoch")
    return pa.table(
        [
            *(requests.column(name) for name in ("topic", "partition", "timestamp_ms")),
            pc.if_else(is_negative, nothing, found.column("offset")),
            pc.if_else(is_negative, nothing, found.column("offset_timestamp_ms")),
            pc.if_else(
                pc.or_kleene(is_negative, pc.equal(epoch, _NO_LEADER_EPOCH)), pa.scalar(None, pa.int32()), epoch
            ),
            error,
        ],
        schema=ANSWER_SCHEMA,
    )
