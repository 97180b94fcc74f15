"""Test that answers have the bytes that kio writes."""

from __future__ import annotations

import io
import random
import struct
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from typing import Any, cast, get_type_hints
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer as kio_writer

from coldlog.serve.answer_writer import PieceWriter, entity_writer
from coldlog.serve.answers.offered import VERSIONS
from coldlog.serve.kio_fields import is_array, is_nullable, nested_class
from coldlog.serve.messages import Request, load_entity, write_answer

_ANSWERS = [(key, version) for key, (first, last) in VERSIONS.items() for version in range(first, last + 1)]
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def _values(entity: Any, chance: random.Random) -> dict[str, Any]:
    """Values for all fields, or for those only that have no default."""
    hints, has_all = get_type_hints(entity), chance.random() < 0.7
    return {
        field.name: _value(hints[field.name], field, chance)
        for field in fields(entity)
        if (field.default is MISSING or has_all) and field.metadata.get("kafka_type") != "datetime_i64"
    }


def _value(hint: Any, field: Field[Any], chance: random.Random) -> Any:
    if is_nullable(hint) and chance.random() < 0.3:
        return None
    nested = nested_class(hint)

    def one() -> Any:
        return _values(nested, chance) if nested is not None else _plain(field.metadata["kafka_type"], chance)

    counts = (0, 1, 200) if nested is None else (0, 1, 2)
    return [one() for _ in range(chance.choice(counts))] if is_array(hint) else one()


def _plain(kafka_type: str, chance: random.Random) -> Any:
    if kafka_type in _BITS:
        bits = _BITS[kafka_type]
        return chance.randrange(-(1 << bits - 1), 1 << bits - 1)
    match kafka_type:
        case "bool":
            return chance.random() < 0.5
        case "string":
            return "Zürich" * chance.choice((0, 1, 30))
        case "bytes" | "records":
            return chance.randbytes(chance.choice((0, 1, 127, 128, 40_000)))
        case "uuid":
            return UUID(bytes=chance.randbytes(16))
        case "error_code":
            return chance.choice(list(ErrorCode))
    assert kafka_type.startswith("timedelta")
    return chance.randrange(1 << 20)


def _built(entity: Any, values: dict[str, Any]) -> Any:
    """The same as an object of kio's class."""
    hints, given = get_type_hints(entity), dict[str, Any]()
    for field in fields(entity):
        nested, value = nested_class(hints[field.name]), values.get(field.name)
        if field.name in values:
            if nested is not None and value is not None:
                is_many = is_array(hints[field.name])
                value = tuple(_built(nested, each) for each in value) if is_many else _built(nested, value)
            if field.metadata.get("kafka_type", "").startswith("timedelta"):
                value = timedelta(milliseconds=values[field.name])
            given[field.name] = value
    return entity(**given)


@pytest.mark.parametrize(("key", "version"), _ANSWERS)
def test_every_answer_has_the_bytes_that_kio_writes(key: int, version: int) -> None:
    entity, chance = load_entity(key, version, is_request=False), random.Random(f"{key} {version}")
    for _ in range(20):
        values, out, expected = _values(entity, chance), PieceWriter(), io.BytesIO()
        entity_writer(entity)(out, values)
        kio_writer(entity)(expected, _built(entity, values))
        assert b"".join(cast("list[bytes]", out.framed()))[4:] == expected.getvalue()


def test_large_contents_are_passed_on_without_a_copy() -> None:
    records = memoryview(bytes(1 << 20))
    partition = {"partition_index": 0, "error_code": 0, "high_watermark": 1, "aborted_transactions": None}
    answer = {"responses": [{"topic": "orders", "partitions": [{**partition, "records": records}]}]}
    request = Request(api_key=1, version=4, correlation_id=9, client_id=None, body=None)
    before, content = write_answer(request, answer)
    assert content is records
    assert isinstance(before, bytes)
    assert int.from_bytes(before[:4], "big") == len(before) - 4 + len(records)
    assert int.from_bytes(before[4:8], "big") == 9


@pytest.mark.parametrize("fields_of", [{}, {"error_code": 0, "node_id": 1, "port": 9092, "host": None}])
def test_an_answer_without_a_value_that_it_needs_is_refused(fields_of: dict[str, Any]) -> None:
    with pytest.raises((TypeError, struct.error)):
        entity_writer(load_entity(10, 0, is_request=False))(PieceWriter(), fields_of)
