"""Turn the bytes of Kafka's protocol into requests, and answers into bytes.

The layouts are kio's: a class for each version of each message. Answers are written as plain dictionaries with the
names of kio's fields, for all versions at once: a field that a version does not have is left out (`answer_writer`).

Bytes that are no request are a `MalformedRequestError`. Any bytes either parse or raise it, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

from kio.index import load_payload_module
from kio.serial import entity_reader
from kio.serial.readers import read_int16, read_int32
from kio.static.constants import EntityType

from coldlog.errors import ColdlogError
from coldlog.serve.answer_writer import Pieces, PieceWriter, Values, entity_writer
from coldlog.serve.presence import Presence
from coldlog.serve.read_ahead import ReadAhead
from coldlog.serve.request_check import read_header, readable_body
from coldlog.serve.security.rights import ALL_RIGHTS, Rights
from coldlog.serve.sending import Outlet

_ANYBODY = Presence()
_NOWHERE = Outlet()
_FIXED_HEADER_BYTES = 8
API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36


class MalformedRequestError(ColdlogError):
    """The bytes are no request of an offered version; the connection must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request. `body` is kio's, of the request's version; None if the version of an ApiVersions is not known.
    `client_host` is for those that describe groups; `rights` is what the client may use, `presence` whether it is
    there, `ahead` what is read ahead for it, `outlet` where a thread may send the answer."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any
    client_host: str = ""
    rights: Rights = ALL_RIGHTS
    presence: Presence = _ANYBODY
    ahead: ReadAhead | None = None
    outlet: Outlet = _NOWHERE


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
    outlet: Outlet = _NOWHERE,
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
    entity = load_entity(key, version, is_request=True)
    try:
        is_flexible = bool(entity.__header_schema__.__flexible__)
        client_id, at = read_header(content, _FIXED_HEADER_BYTES, is_flexible=is_flexible)
        body, _ = entity_reader(entity)(*readable_body(entity, content, at))
    except Exception as unfit:
        raise MalformedRequestError(f"bytes that are no request of API key {key} version {version}") from unfit
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
        outlet=outlet,
    )


def api_name(request: Request) -> str:
    """Return Kafka's name of a request."""
    name: str = load_entity(request.api_key, max(0, request.version), is_request=True).__name__
    return name.removesuffix("Request")


def write_answer(request: Request, values: Values) -> Pieces:
    """Return the bytes of an answer, with their length before them. Large contents are not copied."""
    entity = load_entity(request.api_key, max(0, request.version), is_request=False)
    out = PieceWriter()
    entity_writer(entity.__header_schema__)(out, {"correlation_id": request.correlation_id})
    entity_writer(entity)(out, values)
    return out.framed()


@cache
def load_entity(key: int, version: int, *, is_request: bool) -> Any:
    """Return kio's class of a request or an answer."""
    kind: Literal[EntityType.request, EntityType.response] = EntityType.request if is_request else EntityType.response
    module = load_payload_module(key, version, kind)
    return next(
        value
        for value in vars(module).values()
        if getattr(value, "__type__", None) is kind and value.__module__ == module.__name__
    )
