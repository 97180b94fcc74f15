"""offset_lookup: what are the answers to many requests at once?

The reference rule: over the segments that serve a partition, the lowest offset at or after its log start whose record
has a timestamp at or after the one asked for, with that record's timestamp and leader epoch. Control records and
records of aborted transactions count, as in Kafka. With `broker_compatible` the answer is the one a broker gives from
the same segments: it commits to the first segment whose metadata promises a match, and answers nothing if that holds
none.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.lookups.batch_lookup import BatchSearch
from coldlog.lookups.queries import query_text
from coldlog.model.states import IndexDepth
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
OpenBatches = Callable[[], BatchSearch]
"""Opens the archive when, and only when, a batch has to be read."""
_REQUESTS_A_QUERY = 200_000
_NO_LEADER_EPOCH = -1


def find_offsets_for_timestamps(
    warehouse: Warehouse, requests: pa.Table, *, broker_compatible: bool, batches: OpenBatches | None = None
) -> pa.Table:
    """Answers of `ANSWER_SCHEMA`, one a request of `REQUEST_SCHEMA`, in the same order.

    `offset` is NULL where nothing was found; `error` is UNKNOWN_TOPIC_OR_PARTITION for a partition that the archive
    does not have, UNSUPPORTED_VERSION for a negative timestamp (as a broker answers those that are no sentinels), else
    NULL. Segments at batch depth need `batches`, which reads one batch for each answer; what it cannot read is
    CORRUPT_MESSAGE or KAFKA_STORAGE_ERROR. Without it such a segment is a `UsageError`.
    """
    found = [
        _answer(warehouse, requests.slice(start, _REQUESTS_A_QUERY), broker_compatible, batches)
        for start in range(0, max(requests.num_rows, 1), _REQUESTS_A_QUERY)
    ]
    return pa.concat_tables(found)


def _answer(warehouse: Warehouse, requests: pa.Table, broker_compatible: bool, batches: OpenBatches | None) -> pa.Table:
    spark = warehouse.spark
    spark.createDataFrame(requests).createOrReplaceTempView("coldlog_requests")
    tables = {table.name: warehouse.view(table) for table in (PARTITION_METADATA, SEGMENTS, OFFSET_INDEX, TIME_INDEX)}
    values = {**tables, "broker_compatible": broker_compatible}
    found = spark.sql(query_text("offsets_for_timestamps"), args=values).toArrow().sort_by("request_index")
    in_batches = _find_in_batches(warehouse, values, batches)
    is_negative = pc.less(requests.column("timestamp_ms"), 0)
    columns = {name: found.column(name) for name in ("offset", "offset_timestamp_ms", "leader_epoch")}
    error = pc.if_else(found.column("is_known"), pa.scalar(None, pa.string()), UNKNOWN_TOPIC_OR_PARTITION)
    if in_batches is not None:
        rows = pc.index_in(found.column("request_index"), in_batches.column("request_index"))
        columns = {name: pc.coalesce(column, in_batches.column(name).take(rows)) for name, column in columns.items()}
        error = pc.coalesce(error, in_batches.column("error").take(rows))
    epoch = columns["leader_epoch"]
    columns["leader_epoch"] = pc.if_else(pc.equal(epoch, _NO_LEADER_EPOCH), pa.scalar(None, pa.int32()), epoch)
    nulls = {name: pa.scalar(None, ANSWER_SCHEMA.field(name).type) for name in columns}
    return pa.table(
        [
            *(requests.column(name) for name in ("topic", "partition", "timestamp_ms")),
            *(pc.if_else(is_negative, nulls[name], column) for name, column in columns.items()),
            pc.if_else(is_negative, UNSUPPORTED_VERSION, error),
        ],
        schema=ANSWER_SCHEMA,
    )


def _find_in_batches(warehouse: Warehouse, values: dict[str, object], batches: OpenBatches | None) -> pa.Table | None:
    """Answers from segments at batch depth; None where there are no such segments."""
    at_batch_depth = F.col("index_depth") == IndexDepth.BATCH.value
    if not warehouse.read(SEGMENTS).where(at_batch_depth & F.col("served_from_offset").isNotNull()).head(1):
        return None
    if batches is None:
        raise UsageError("the archive is indexed at batch depth; lookups need archive.uri to read the batches")
    values = {name: value for name, value in values.items() if name != TIME_INDEX.name}
    return batches().search(warehouse.spark.sql(query_text("batches_for_timestamps"), args=values)).toArrow()
