"""Write answers in the layouts of kio's classes.

kio's own writer takes objects of its classes, and each field costs a call or more. Here each class is looked at once,
and consecutive fields of fixed size are packed together, from plain dictionaries. A field that has no value is written
as kio's default. A tagged field is left out if it has its default.

Large contents are passed on without a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from itertools import groupby
from typing import Any, cast, get_type_hints
from uuid import UUID

from coldlog.records.fetch.stored_slices import StoredRange
from coldlog.serve.kio_fields import is_array, is_nullable, nested_class

_PIECE_BYTES = 16 * 1024
"""Content of this size is passed on without a copy."""
_FORMATS = {
    "int8": "b", "uint8": "B", "bool": "?", "int16": "h", "uint16": "H", "error_code": "h", "int32": "i", "uint32": "I",
    "timedelta_i32": "i", "int64": "q", "uint64": "Q", "float64": "d", "timedelta_i64": "q", "datetime_i64": "q",
}  # fmt: skip
_NO_TAGS = b"\0"
_NULL_ENTITY, _ENTITY = b"\xff", b"\x01"
_NO_ID = bytes(16)

Values = Mapping[str, object]
"""The fields of an answer. Durations are milliseconds."""
Piece = bytes | memoryview | StoredRange
Pieces = list[Piece]
"""Bytes to send one after another; those of a file have `_PIECE_BYTES` at least."""


class PieceWriter:
    """Collects what is written: in `small`, or in pieces if it is large."""

    def __init__(self) -> None:
        self._pieces: Pieces = []
        self.small = bytearray()

    def add(self, content: Piece) -> None:
        """Add content, which is not copied if it is large."""
        if not isinstance(content, StoredRange) and len(content) < _PIECE_BYTES:
            self.small += content
            return
        self._end_piece()
        self._pieces.append(content)

    def framed(self) -> Pieces:
        """Return everything, with its length before it."""
        self._end_piece()
        size = sum(len(piece) for piece in self._pieces)
        first, prefix = self._pieces[0], size.to_bytes(4, "big")
        if isinstance(first, StoredRange):
            return [prefix, *self._pieces]
        return [prefix + first, *self._pieces[1:]]

    def _end_piece(self) -> None:
        if self.small:
            self._pieces.append(bytes(self.small))
            self.small = bytearray()


_Write = Callable[[PieceWriter, Any], None]
"""Writes one value."""
_WriteFrom = Callable[[PieceWriter, Values], None]
"""Writes one field, or several, of an entity."""


@cache
def entity_writer(entity: Any) -> _WriteFrom:
    """Return what writes one entity of kio's class."""
    hints, is_flexible = get_type_hints(entity), bool(entity.__flexible__)

    def is_fixed(field: Field[Any]) -> bool:
        return field.metadata.get("kafka_type") in _FORMATS and not is_array(hints[field.name])

    def writer(field: Field[Any]) -> _Write:
        return _value_writer(hints[field.name], field, is_flexible=is_flexible)

    writes: list[_WriteFrom] = []
    for are_fixed, group in groupby((each for each in fields(entity) if "tag" not in each.metadata), is_fixed):
        if are_fixed:
            writes.append(_write_packed([*group]))
        else:
            writes += [_write_field(each.name, writer(each), _default(each)) for each in group]
    if is_flexible:
        tagged = [each for each in fields(entity) if "tag" in each.metadata]
        writes.append(
            _write_tagged([(each.metadata["tag"], each.name, writer(each), _default(each)) for each in tagged])
        )

    def write_entity(out: PieceWriter, values: Values) -> None:
        for write in writes:
            write(out, values)

    return writes[0] if len(writes) == 1 else write_entity


def _default(field: Field[Any]) -> object:
    """Return the default as the writers want it; MISSING if there is none."""
    if isinstance(field.default, timedelta):
        return round(field.default.total_seconds() * 1000)
    if is_dataclass(field.default):
        return {each.name: getattr(field.default, each.name) for each in fields(field.default)}
    kafka_type = field.metadata.get("kafka_type", "")
    if field.default is MISSING and kafka_type.startswith("timedelta"):
        return 0
    return -1 if kafka_type == "datetime_i64" and field.default is None else field.default


def _write_packed(packed: Sequence[Field[Any]]) -> _WriteFrom:
    """Write consecutive fields of fixed size at once. struct refuses MISSING."""
    pack = struct.Struct(">" + "".join(_FORMATS[field.metadata["kafka_type"]] for field in packed)).pack
    named = tuple((field.name, _default(field)) for field in packed)

    def write(out: PieceWriter, values: Values) -> None:
        get = values.get
        out.small += pack(*[get(name, default) for name, default in named])

    return write


def _write_field(name: str, write: _Write, default: object) -> _WriteFrom:
    def write_field(out: PieceWriter, values: Values) -> None:
        value = values.get(name, default)
        if value is MISSING:
            raise TypeError(f"an answer has no {name}")
        write(out, value)

    return write_field


def _write_tagged(tagged: Sequence[tuple[int, str, _Write, Any]]) -> _WriteFrom:
    """Write the fields that have another value than their default, by ascending tag."""
    in_order = sorted(tagged, key=lambda each: each[0])

    def encoded(write: _Write, value: object) -> bytes:
        apart = PieceWriter()
        write(apart, value)
        return b"".join(cast("list[bytes | memoryview]", apart.framed()))[4:]  # No field with a tag has records.

    def write_no_tags(out: PieceWriter, _: Values) -> None:
        out.small += _NO_TAGS

    def write_tagged(out: PieceWriter, values: Values) -> None:
        given = [
            (tag, encoded(write, values[name]), write, default)
            for tag, name, write, default in tagged
            if name in values
        ]
        written = [(tag, content) for tag, content, write, default in given if content != encoded(write, default)]
        out.small += varint(len(written))
        for tag, content in written:
            out.small += varint(tag) + varint(len(content))
            out.add(content)

    return write_tagged if in_order else write_no_tags


def _value_writer(hint: Any, field: Field[Any], *, is_flexible: bool) -> _Write:
    nested, kafka_type, may_be_null = nested_class(hint), field.metadata.get("kafka_type"), is_nullable(hint)
    if is_array(hint):
        write_one = _plain_writer(kafka_type, is_flexible=is_flexible) if nested is None else entity_writer(nested)
        return _array_writer(write_one, is_flexible=is_flexible)
    if nested is not None:
        return _nullable_entity_writer(entity_writer(nested)) if may_be_null else entity_writer(nested)
    return _plain_writer(kafka_type, is_flexible=is_flexible, may_be_null=may_be_null)


def _plain_writer(kafka_type: str | None, *, is_flexible: bool, may_be_null: bool = False) -> _Write:
    if kafka_type == "uuid":
        return _write_uuid
    if kafka_type in _FORMATS:
        pack = struct.Struct(">" + _FORMATS[kafka_type]).pack

        def write_packed(out: PieceWriter, value: object) -> None:
            out.small += pack(value)

        return write_packed
    if kafka_type not in ("string", "bytes", "records"):
        raise TypeError(f"unknown type of a field: {kafka_type!r}")
    write_length = _length_writer(">h" if kafka_type == "string" else ">i", is_flexible=is_flexible)

    def write_sized(out: PieceWriter, value: Any) -> None:
        if value is None:
            if not may_be_null:
                raise TypeError("null in a field that may not be null")
            write_length(out, -1)
            return
        content = value.encode() if isinstance(value, str) else value
        write_length(out, len(content))
        out.add(content)

    return write_sized


def _write_uuid(out: PieceWriter, value: UUID | None) -> None:
    out.small += _NO_ID if value is None else value.bytes


def _array_writer(write_one: _Write, *, is_flexible: bool) -> _Write:
    write_length = _length_writer(">i", is_flexible=is_flexible)

    def write_array(out: PieceWriter, items: Sequence[Any] | None) -> None:
        write_length(out, -1 if items is None else len(items))
        for item in items or ():
            write_one(out, item)

    return write_array


def _nullable_entity_writer(write_entity: _WriteFrom) -> _Write:
    """An entity that may be null: one byte says whether it follows."""

    def write_nullable(out: PieceWriter, value: Values | None) -> None:
        out.small += _NULL_ENTITY if value is None else _ENTITY
        if value is not None:
            write_entity(out, value)

    return write_nullable


def _length_writer(width: str, *, is_flexible: bool) -> Callable[[PieceWriter, int], None]:
    """Write a length, -1 for null."""
    pack = struct.Struct(width).pack

    def write_length(out: PieceWriter, length: int) -> None:
        if not is_flexible:
            out.small += pack(length)
        elif length < 0x7F:
            out.small.append(length + 1)
        else:
            out.small += varint(length + 1)

    return write_length


def varint(value: int) -> bytes:
    """Return an unsigned number in groups of 7 bits, the lowest first."""
    content = bytearray()
    while value > 0x7F:
        content.append(0x80 | value & 0x7F)
        value >>= 7
    content.append(value)
    return bytes(content)
