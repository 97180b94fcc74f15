"""Ask the answers of an endpoint in this process, with the bytes that a client sends and gets.

The request is written, and the answer read, by kio's classes, as a client for Python would.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from dataclasses import Field, fields
from datetime import timedelta
from typing import Any, get_type_hints
from uuid import UUID

from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from coldlog.serve.answers.offered import ANSWERS, VERSIONS
from coldlog.serve.context import Context
from coldlog.serve.kio_fields import is_array, nested_class
from coldlog.serve.messages import load_entity, read_request, write_answer
from coldlog.serve.presence import Presence
from coldlog.serve.security.rights import ALL_RIGHTS, Rights

_LENGTH_BYTES = 4
_SAMPLES: Mapping[str, object] = {
    "string": "text",
    "bytes": b"bytes",
    "records": b"records",
    "uuid": UUID(int=5),
    "bool": True,
    "timedelta_i32": timedelta(milliseconds=5),
    "timedelta_i64": timedelta(milliseconds=5),
}


def part(key: int, version: int, name: str, /, **fields: object) -> Any:
    """A request, or a part of one, by the name of its class."""
    return getattr(load_payload_module(key, version, EntityType.request), name)(**fields)


def sample(entity: Any, values: Mapping[str, object], entries: int = 2) -> Any:
    """An object of kio's class, with a value in each field and so many entries in each array. `values` has those of
    fields by their name, and of others by their type in Kafka; a number is 2."""
    hints = get_type_hints(entity)

    def value(field: Field[Any]) -> object:
        nested, hint = nested_class(hints[field.name]), hints[field.name]
        kafka_type = field.metadata.get("kafka_type", "")
        if nested is None:
            one = values.get(field.name, values.get(kafka_type, _SAMPLES.get(kafka_type, 2)))
        else:
            one = sample(nested, values, entries)
        return (one,) * entries if is_array(hint) else one

    return entity(**{each.name: value(each) for each in fields(entity)})


def encoded(body: Any, *, correlation_id: int = 7, client_id: str | None = "test") -> bytes:
    """The bytes of a request, without its length."""
    out, header = io.BytesIO(), type(body).__header_schema__
    entity_writer(header)(
        out,
        header(
            request_api_key=int(type(body).__api_key__),
            request_api_version=int(type(body).__version__),
            correlation_id=correlation_id,
            client_id=client_id,
        ),
    )
    entity_writer(type(body))(out, body)
    return out.getvalue()


async def ask(context: Context, content: bytes, rights: Rights = ALL_RIGHTS, presence: Presence | None = None) -> Any:
    """The answer to the bytes of a request, as kio's class."""
    request = read_request(content, VERSIONS, "host", rights, presence or Presence())
    values = await ANSWERS[request.api_key](context, request)
    written = b"".join(bytes(each) for each in write_answer(request, values))  # type: ignore[arg-type]  # no file
    assert int.from_bytes(written[:_LENGTH_BYTES], "big") == len(written) - _LENGTH_BYTES
    entity = load_entity(request.api_key, request.version, is_request=False)
    header, size = entity_reader(entity.__header_schema__)(written, _LENGTH_BYTES)
    assert header.correlation_id == request.correlation_id
    answer, size = entity_reader(entity)(written, _LENGTH_BYTES + size)
    return answer


def asked(context: Context, body: Any, rights: Rights = ALL_RIGHTS) -> Any:
    """Ask without an event loop."""
    return asyncio.run(ask(context, encoded(body), rights))
