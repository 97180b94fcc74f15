"""raw_client: send single requests, as kio writes them."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType


class RawClient:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def ask(self, key: int, version: int, body: object) -> Any:
        """Send a request and return the answer."""
        self.connection.sendall(framed(key, version, body))
        return self.answer(key, version)

    def answer(self, key: int, version: int) -> Any:
        """Receive an answer."""
        module = load_payload_module(key, version, EntityType.response)
        entity: Any = next(
            value for value in vars(module).values() if getattr(value, "__type__", None) is EntityType.response
        )
        content = self.receive()
        _, size = entity_reader(entity.__header_schema__)(content, 0)
        return entity_reader(entity)(content, size)[0]

    def receive(self) -> bytes:
        """The bytes of one answer."""
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def is_closed(self) -> bool:
        """Whether the endpoint ends the connection."""
        try:
            return self.connection.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            part = self.connection.recv(size - len(content))
            if not part:
                raise ConnectionError("the endpoint ended the connection")
            content += part
        return content


@contextmanager
def connected(port: int) -> Iterator[RawClient]:
    """Connect to an endpoint of this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        yield RawClient(connection)


def framed(key: int, version: int, body: object, correlation_id: int = 7) -> bytes:
    """A request with its length before it."""
    out = io.BytesIO()
    header = type(body).__header_schema__  # type: ignore[attr-defined]  # kio's classes have it
    entity_writer(header)(
        out, header(request_api_key=key, request_api_version=version, correlation_id=correlation_id, client_id="raw")
    )
    entity_writer(type(body))(out, body)  # type: ignore[type-var]
    return len(out.getvalue()).to_bytes(4, "big") + out.getvalue()


def message(key: int, version: int, name: str, /, **fields: object) -> Any:
    """A part of a request, by the name of its class."""
    return getattr(load_payload_module(key, version, EntityType.request), name)(**fields)


def list_offsets(
    asked: Sequence[tuple[str, int, int]], *, is_committed: bool = False, timeout_ms: int = 0, version: int = 11
) -> object:
    """A ListOffsets request: topic, partition, timestamp. `timeout_ms` needs version 10."""
    return message(
        2,
        version,
        "ListOffsetsRequest",
        replica_id=-1,
        isolation_level=int(is_committed),
        topics=tuple(
            message(
                2,
                version,
                "ListOffsetsTopic",
                name=topic,
                partitions=(
                    message(2, version, "ListOffsetsPartition", partition_index=partition, timestamp=timestamp_ms),
                ),
            )
            for topic, partition, timestamp_ms in asked
        ),
        **({"timeout": timedelta(milliseconds=timeout_ms)} if version >= 10 else {}),
    )


def fetch(
    version: int,
    asked: Sequence[tuple[str | UUID, int, int]],
    *,
    max_wait_ms: int = 0,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    leader_epoch: int = -1,
) -> object:
    """A Fetch request: topic (from version 13 on its id), partition, offset."""
    topics = []
    for topic, partition, offset in asked:
        fields = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes}
        if version >= 9:
            fields["current_leader_epoch"] = leader_epoch
        part = message(1, version, "FetchPartition", **fields)
        named = {"topic_id" if version >= 13 else "topic": topic}
        topics.append(message(1, version, "FetchTopic", **named, partitions=(part,)))
    later: dict[str, object] = {"forgotten_topics_data": ()} if version >= 7 else {}
    later |= {} if version >= 15 else {"replica_id": -1}
    return message(
        1,
        version,
        "FetchRequest",
        max_wait=timedelta(milliseconds=max_wait_ms),
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        topics=tuple(topics),
        **later,
    )
