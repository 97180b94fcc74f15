"""Build Arrow rows from decoded records.

The buffers that the kernels filled are used without a copy. Values that are the same in every row of a partition are
built once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.record_columns import ByteColumn, HeaderColumn, RecordColumns, WantedFields
from coldlog.records.source.columns import GREATEST_FITTING_MS, HEADERS, LEAST_FITTING_MS, TIMESTAMP_MS

_HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])
_ARROW_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    TIMESTAMP_MS: pa.int64(),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.field("element", _HEADER_TYPE)),
}


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of these columns."""
    return pa.schema([(name, _ARROW_TYPES[name]) for name in columns])


def wanted_fields(columns: Sequence[str]) -> WantedFields:
    """Return which fields of each record have to be copied."""
    return WantedFields(key="key" in columns, value="value" in columns, headers=HEADERS in columns)


@dataclass(slots=True, kw_only=True)
class RowBuilder:
    """Builds rows of one partition's records; keeps the values that are the same in all of them. With
    `nulls_timestamps`, `timestamp` is NULL where a TIMESTAMP of Spark cannot hold it."""

    topic: str
    partition: int
    columns: Sequence[str]
    nulls_timestamps: bool = False
    _same: dict[str, pa.Array] = field(default_factory=dict)

    def build(self, records: RecordColumns) -> pa.RecordBatch:
        """Build a row per record. Raise `ArchiveError` if a timestamp does not fit into a TIMESTAMP of Spark."""
        arrays = [self._array(name, records) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self.columns))

    def _array(self, name: str, records: RecordColumns) -> pa.Array:
        if name in ("topic", "partition"):
            return self._repeated(name, len(records))
        if name == "offset":
            return pa.array(records.offset)
        if name == "timestamp":
            return self._timestamps(records)
        if name == TIMESTAMP_MS:
            return pa.array(records.timestamp_ms)
        if name == "timestampType":
            return pa.array(records.is_log_append_time.astype(np.int32))
        if name == HEADERS:
            assert records.headers is not None
            return _header_array(records.headers)
        content = records.key if name == "key" else records.value
        assert content is not None
        return _byte_array(content, pa.binary())

    def _repeated(self, name: str, count: int) -> pa.Array:
        """Return a slice of the longest array that was needed so far."""
        same = self._same.get(name)
        if same is None or len(same) < count:
            value = self.topic if name == "topic" else self.partition
            same = self._same[name] = pa.repeat(pa.scalar(value, type=_ARROW_TYPES[name]), count)
        return same.slice(0, count)

    def _timestamps(self, records: RecordColumns) -> pa.Array:
        milliseconds = records.timestamp_ms
        is_beyond = (milliseconds > GREATEST_FITTING_MS) | (milliseconds < LEAST_FITTING_MS)
        if not is_beyond.any():
            return pa.array(milliseconds * 1000).view(_ARROW_TYPES["timestamp"])
        if not self.nulls_timestamps:
            at = int(np.argmax(is_beyond))
            raise ArchiveError(
                Reason.RECORDS_INVALID,
                f"the timestamp of offset {int(records.offset[at])} of {self.topic}-{self.partition} does not fit into "
                "a TIMESTAMP of Spark; set the option timestampBeyondRange to null, and includeTimestampMs to true for "
                "its milliseconds",
                expected=f"at most {GREATEST_FITTING_MS} ms",
                found=f"{int(milliseconds[at])} ms",
            )
        microseconds = pa.array(np.where(is_beyond, 0, milliseconds) * 1000, mask=is_beyond)
        return microseconds.view(_ARROW_TYPES["timestamp"])


def _byte_array(column: ByteColumn, kind: pa.DataType) -> pa.Array:
    validity, null_count = _validity(column.is_null)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.content)]
    return pa.Array.from_buffers(kind, len(column.offsets) - 1, buffers, null_count)


def _header_array(column: HeaderColumn) -> pa.Array:
    count = len(column.offsets) - 1
    names = _text_array(column.names)
    structs = pa.StructArray.from_arrays([names, _byte_array(column.values, pa.binary())], fields=list(_HEADER_TYPE))
    validity, null_count = _validity(np.diff(column.offsets) == 0)
    buffers = [validity, pa.py_buffer(column.offsets)]
    return pa.Array.from_buffers(_ARROW_TYPES[HEADERS], count, buffers, null_count, children=[structs])


def _text_array(column: ByteColumn) -> pa.Array:
    """Read names as Kafka's consumer does: bytes that are not UTF-8 are replaced."""
    texts = _byte_array(column, pa.string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        read = [name.decode("utf-8", "replace") for name in _byte_array(column, pa.binary()).to_pylist()]
        return pa.array(read, type=pa.string())
    return texts


def _validity(is_null: npt.NDArray[np.bool_] | None) -> tuple[pa.Buffer | None, int]:
    null_count = 0 if is_null is None else int(np.count_nonzero(is_null))
    if is_null is None or not null_count:
        return None, 0
    return pa.py_buffer(np.packbits(~is_null, bitorder="little")), null_count
