"""random_requests: make requests of every kind and version, with fields by chance, and damage them."""

from __future__ import annotations

import random
from dataclasses import fields
from datetime import timedelta
from typing import Any, get_args, get_type_hints
from uuid import UUID

from kio.index import load_payload_module
from kio.static.constants import EntityType

from coldlog.serve.answers.offered import VERSIONS
from endpoint.support.raw_client import framed

_NAMES = ("orders", "orders", "payments", "late.events", "group", "group-2", "range", "consumer", "", "no such", "\0é")
_NUMBERS = (0, 0, 0, 1, 1, 2, 5, 3952, 3953, 6000, 1_700_042_400_000, -1, -1, -2, -3, 1 << 15, 1 << 31, 1 << 62)
_BYTES = (b"", b"\0", b"\0user\0password", b"\0\0\0\0\0\1\0\6orders", b"n,,n=user,r=nonce", b"\xff" * 70, b"x" * 5000)
_IDS = (None, UUID(int=0), UUID(int=7))
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_SIZES = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\xff\xff\xff\xff\x0f", b"\xff" * 11)
_KEYS = sorted(VERSIONS)


def random_request(chance: random.Random) -> bytes:
    """A request of any version that is offered, framed. Its fields fit their types and perhaps nothing else."""
    key = chance.choice(_KEYS)
    version = chance.randint(*VERSIONS[key])
    module = load_payload_module(key, version, EntityType.request)
    entity = next(each for each in vars(module).values() if getattr(each, "__type__", None) is EntityType.request)
    return framed(key, version, _entity(entity, chance), correlation_id=chance.randrange(1 << 31))


def damaged(request: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """The request with one to six mistakes. In one of five its length is wrong too."""
    content = bytearray(request)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        _damage(content, others, chance)
        if len(content) < 12:
            break
    if chance.random() < 0.8:
        content[:4] = (len(content) - 4).to_bytes(4, "big", signed=True)
    return bytes(content)


def many_entries(count: int) -> bytes:
    """A Metadata request of so many topics, three bytes each."""
    content = b"\0\3\0\1\0\0\0\7\xff\xff" + count.to_bytes(4, "big") + b"\0\1a" * count
    return len(content).to_bytes(4, "big") + content


def _damage(content: bytearray, others: list[bytes], chance: random.Random) -> None:
    at = chance.randrange(len(content))
    size, other = chance.choice((1, 2, 4, 8, 1000)), chance.choice(others)
    match chance.randrange(8):
        case 0:
            content[at] = chance.randrange(256)
        case 1:
            content[at] ^= 1 << chance.randrange(8)
        case 2:
            wrong = chance.choice(_SIZES)
            content[at : at + len(wrong)] = wrong
        case 3:
            del content[at : at + size]
        case 4:
            content[at:at] = chance.randbytes(size)
        case 5:  # What follows is that of another request.
            content[at:] = other[chance.randrange(len(other)) :]
        case 6:  # The same again and again.
            content[at:at] = content[at : at + chance.randint(1, 30)] * chance.choice((1, 2, 300))
        case _:
            _change_header(content, chance)


def _change_header(content: bytearray, chance: random.Random) -> None:
    """Give another API, or another version, which may not be offered."""
    at, usual = chance.choice(((4, _KEYS), (6, range(20))))
    content[at : at + 2] = chance.choice((chance.choice(usual), chance.randrange(1 << 16))).to_bytes(2, "big")


def _entity(entity: Any, chance: random.Random) -> Any:
    hints = get_type_hints(entity)
    return entity(
        **{field.name: _value(hints[field.name], field.metadata.get("kafka_type"), chance) for field in fields(entity)}
    )


def _value(hint: Any, kafka_type: str | None, chance: random.Random) -> object:
    parts = get_args(hint)
    if type(None) in parts and chance.random() < 0.2:
        return None
    for part in (hint, *parts):
        if getattr(part, "__origin__", None) is tuple:
            return tuple(_value(get_args(part)[0], kafka_type, chance) for _ in range(chance.choice((0, 1, 1, 2, 5))))
    for part in (hint, *parts):
        if getattr(part, "__type__", None) is EntityType.nested:
            return _entity(part, chance)
    return _primitive(kafka_type or "", chance)


def _primitive(kafka_type: str, chance: random.Random) -> object:
    if kafka_type in _BITS:
        half = 1 << (_BITS[kafka_type] - 1)
        return (chance.choice(_NUMBERS) + half) % (2 * half) - half
    if kafka_type == "string":
        return chance.choice(_NAMES) if chance.random() < 0.95 else "long" * chance.choice((50, 5000))
    if kafka_type in ("bytes", "records"):
        return chance.choice(_BYTES)
    if kafka_type == "bool":
        return chance.random() < 0.5
    if kafka_type == "uuid":
        return chance.choice(_IDS)
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return timedelta(milliseconds=chance.choice((0, 0, 1, 100, 6000, 6000, -1, (1 << 31) - 1)))
    raise TypeError(f"unknown type of a field: {kafka_type!r}")
