"""Turn the bytes of Kafka's protocol into requests, and answers into bytes.

The layouts are kio's: a class for each version of each message. Answers are written as plain dictionaries with the
names of kio's fields, for all versions at once: a field that a version does not have is left out.

Bytes that are no request are a `MalformedRequestError`. Any bytes either parse or raise it, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache
from typing import Any, Literal, Protocol, get_args, get_type_hints

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.readers import read_int16, read_int32
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta

from coldlog.errors import ColdlogError
from coldlog.serve.presence import Presence
from coldlog.serve.read_ahead import ReadAhead
from coldlog.serve.request_check import Unread, skip_entity
from coldlog.serve.security.rights import ALL_RIGHTS, Rights

_ANYBODY = Presence()
_PIECE_BYTES = 16 * 1024
"""Content of this size is passed on without a copy."""
_FIXED_HEADER_BYTES = 8
API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36

Values = Mapping[str, object]
"""The fields of an answer."""
Pieces = list[bytes | memoryview]
"""Bytes to send one after another."""


class MalformedRequestError(ColdlogError):
    """The bytes are no request of an offered version; the connection must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request. `body` is kio's, of the request's version; None if the version of an ApiVersions is not known.
    `client_host` is for those that describe groups; `rights` is what the client may use, `presence` whether it is
    there, `ahead` what is read ahead for it."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any
    client_host: str = ""
    rights: Rights = ALL_RIGHTS
    presence: Presence = _ANYBODY
    ahead: ReadAhead | None = None


class Offered(Protocol):
    """The versions of each API that are offered: (first, last) by key."""

    def get(self, key: int, /) -> tuple[int, int] | None: ...


def read_request(
    content: bytes,
    offered: Offered,
    client_host: str = "",
    rights: Rights = ALL_RIGHTS,
    presence: Presence = _ANYBODY,
    ahead: ReadAhead | None = None,
) -> Request:
    """Read one request; an ApiVersions of a version that does not exist yet is a request too."""
    if len(content) < _FIXED_HEADER_BYTES:
        raise MalformedRequestError(f"a request of {len(content)} bytes")
    key, version = read_int16(content, 0)[0], read_int16(content, 2)[0]
    correlation_id = read_int32(content, 4)[0]
    versions = offered.get(key)
    if versions is None:
        raise MalformedRequestError(f"API key {key} is not offered")
    if not versions[0] <= version <= versions[1]:
        if key == API_VERSIONS:
            return Request(api_key=key, version=-1, correlation_id=correlation_id, client_id=None, body=None)
        raise MalformedRequestError(f"version {version} of API key {key} is not offered")
    entity = _entity(key, version, is_request=True)
    try:
        header, size = entity_reader(entity.__header_schema__)(content, 0)
        skip_entity(entity)(Unread(content), size)
        body, _ = entity_reader(entity)(content, size)
    except Exception as unfit:
        raise MalformedRequestError(f"bytes that are no request of API key {key} version {version}") from unfit
    client_id = getattr(header, "client_id", None)
    return Request(
        api_key=key,
        version=version,
        correlation_id=correlation_id,
        client_id=client_id,
        body=body,
        client_host=client_host,
        rights=rights,
        presence=presence,
        ahead=ahead,
    )


def api_name(request: Request) -> str:
    """Return Kafka's name of a request."""
    name: str = _entity(request.api_key, max(0, request.version), is_request=True).__name__
    return name.removesuffix("Request")


def write_answer(request: Request, values: Values) -> Pieces:
    """Return the bytes of an answer, with their length before them. Large contents are not copied."""
    entity = _entity(request.api_key, max(0, request.version), is_request=False)
    out = _PieceWriter()
    header = entity.__header_schema__
    entity_writer(header)(out, header(correlation_id=request.correlation_id))  # type: ignore[arg-type]  # it only writes
    entity_writer(entity)(out, _build(entity, values))  # type: ignore[arg-type]
    return out.framed()


class _PieceWriter:
    """Collects what is written."""

    def __init__(self) -> None:
        self._pieces: Pieces = []
        self._small = bytearray()

    def write(self, content: bytes | memoryview) -> None:
        if len(content) < _PIECE_BYTES:
            self._small += content
            return
        self._end_piece()
        self._pieces.append(content)

    def framed(self) -> Pieces:
        self._end_piece()
        size = sum(len(piece) for piece in self._pieces)
        return [size.to_bytes(4, "big") + self._pieces[0], *self._pieces[1:]]

    def _end_piece(self) -> None:
        if self._small:
            self._pieces.append(bytes(self._small))
            self._small = bytearray()


@cache
def _entity(key: int, version: int, *, is_request: bool) -> Any:
    kind: Literal[EntityType.request, EntityType.response] = EntityType.request if is_request else EntityType.response
    module = load_payload_module(key, version, kind)
    return next(
        value
        for value in vars(module).values()
        if getattr(value, "__type__", None) is kind and value.__module__ == module.__name__
    )


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    nested: Any
    is_error: bool
    is_duration: bool


@cache
def _fields(entity: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(entity)
    return tuple(
        _Field(
            field.name, _nested(hints[field.name]), hints[field.name] is ErrorCode, hints[field.name] is i32Timedelta
        )
        for field in fields(entity)
    )


def _nested(hint: Any) -> Any:
    """Return the class of a field's entries, if they are messages of their own."""
    if isinstance(hint, type) and getattr(hint, "__type__", None) is EntityType.nested:
        return hint
    return next((found for each in get_args(hint) if (found := _nested(each)) is not None), None)


def _build(entity: Any, values: Values) -> Any:
    built: dict[str, object] = {}
    for field in _fields(entity):
        if field.name in values:
            built[field.name] = _value(field, values[field.name])
        elif field.is_duration:
            built[field.name] = timedelta(0)
    return entity(**built)


def _value(field: _Field, value: Any) -> object:
    if field.nested is not None and value is not None:
        is_many = isinstance(value, Sequence)
        return tuple(_build(field.nested, each) for each in value) if is_many else _build(field.nested, value)
    if field.is_error:
        return ErrorCode(value)
    return timedelta(milliseconds=value) if field.is_duration else value
