"""offset_lookup: what are the answers to many requests at once?

The reference rule: over the segments that serve a partition, the lowest offset at or after its log start whose record
has a timestamp at or after the one asked for, with that record's timestamp and leader epoch. Control records and
records of aborted transactions count, as in Kafka. With `broker_compatible` the answer is the one a broker gives from
the same segments: it commits to the first segment whose metadata promises a match, and answers nothing if that holds
none. With READ_COMMITTED there is no answer at or behind the archive-side stable offset: whether the records there
count is not decided within the archive.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.lookups.batch_lookup import BatchSearch
from coldlog.lookups.queries import query_text
from coldlog.model.states import IndexDepth, IsolationLevel
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
OPEN_TRANSACTION = "OPEN_TRANSACTION"
OpenBatches = Callable[[], BatchSearch]
"""Opens the archive when, and only when, a batch has to be read."""
_REQUESTS_A_QUERY = 200_000
_NO_LEADER_EPOCH = -1


def find_offsets_for_timestamps(
    warehouse: Warehouse,
    requests: pa.Table,
    *,
    broker_compatible: bool,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    batches: OpenBatches | None = None,
) -> pa.Table:
    """Answers of `ANSWER_SCHEMA`, one a request of `REQUEST_SCHEMA`, in the same order.

    `offset` is NULL where nothing was found; `error` is UNKNOWN_TOPIC_OR_PARTITION for a partition that the archive
    does not have, UNSUPPORTED_VERSION for a negative timestamp (as a broker answers those that are no sentinels),
    OPEN_TRANSACTION where READ_COMMITTED ends before the record that was found, else NULL. Segments at batch depth
    need `batches`, which reads one batch for each answer; what it cannot read is CORRUPT_MESSAGE or
    KAFKA_STORAGE_ERROR. Without it such a segment is a `UsageError`.
    """
    pieces = [
        requests.slice(start, _REQUESTS_A_QUERY) for start in range(0, max(requests.num_rows, 1), _REQUESTS_A_QUERY)
    ]
    is_committed = isolation_level is IsolationLevel.READ_COMMITTED
    return pa.concat_tables([_answer(warehouse, piece, broker_compatible, is_committed, batches) for piece in pieces])


def _answer(
    warehouse: Warehouse,
    requests: pa.Table,
    broker_compatible: bool,
    is_committed: bool,
    batches: OpenBatches | None,
) -> pa.Table:
    spark = warehouse.spark
    spark.createDataFrame(requests).createOrReplaceTempView("coldlog_requests")
    tables = {table.name: warehouse.view(table) for table in (PARTITION_METADATA, SEGMENTS, OFFSET_INDEX, TIME_INDEX)}
    values = {**tables, "broker_compatible": broker_compatible}
    found = spark.sql(query_text("offsets_for_timestamps"), args=values).toArrow().sort_by("request_index")
    in_batches = _find_in_batches(warehouse, values, batches)
    columns = {name: found.column(name) for name in ("offset", "offset_timestamp_ms", "leader_epoch")}
    error = pc.if_else(found.column("is_known"), pa.scalar(None, pa.string()), UNKNOWN_TOPIC_OR_PARTITION)
    if in_batches is not None:
        rows = pc.index_in(found.column("request_index"), in_batches.column("request_index"))
        columns = {name: pc.coalesce(column, in_batches.column(name).take(rows)) for name, column in columns.items()}
        error = pc.coalesce(error, in_batches.column("error").take(rows))
    epoch = columns["leader_epoch"]
    columns["leader_epoch"] = pc.if_else(pc.equal(epoch, _NO_LEADER_EPOCH), pa.scalar(None, pa.int32()), epoch)
    if is_committed:
        is_open = pc.fill_null(pc.greater_equal(columns["offset"], found.column("stable_offset")), False)
        columns, error = _refuse(columns, error, is_open, OPEN_TRANSACTION)
    columns, error = _refuse(columns, error, pc.less(requests.column("timestamp_ms"), 0), UNSUPPORTED_VERSION)
    asked = [requests.column(name) for name in ("topic", "partition", "timestamp_ms")]
    return pa.table([*asked, *columns.values(), error], schema=ANSWER_SCHEMA)


_Columns = dict[str, pa.ChunkedArray]


def _refuse(
    columns: _Columns, error: pa.ChunkedArray, where: pa.ChunkedArray, why: str
) -> tuple[_Columns, pa.ChunkedArray]:
    """No answer `where`, and the error that says why."""
    nulls = {name: pa.scalar(None, ANSWER_SCHEMA.field(name).type) for name in columns}
    answers = {name: pc.if_else(where, nulls[name], column) for name, column in columns.items()}
    return answers, pc.if_else(where, why, error)


def _find_in_batches(warehouse: Warehouse, values: dict[str, object], batches: OpenBatches | None) -> pa.Table | None:
    """Answers from segments at batch depth; None where there are no such segments."""
    at_batch_depth = F.col("index_depth") == IndexDepth.BATCH.value
    if not warehouse.read(SEGMENTS).where(at_batch_depth & F.col("served_from_offset").isNotNull()).head(1):
        return None
    if batches is None:
        raise UsageError("the archive is indexed at batch depth; lookups need archive.uri to read the batches")
    values = {name: value for name, value in values.items() if name != TIME_INDEX.name}
    return batches().search(warehouse.spark.sql(query_text("batches_for_timestamps"), args=values)).toArrow()
