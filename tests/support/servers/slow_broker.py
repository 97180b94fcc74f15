"""slow_broker: a broker that takes its time for ListOffsets, or answers that the time was too short."""

from __future__ import annotations

import math
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from coldlog.serve.answer_writer import Values
from coldlog.serve.messages import API_VERSIONS, Request, read_request, write_answer

LIST_OFFSETS, METADATA = 2, 3
OFFERED = {LIST_OFFSETS: (1, 11), METADATA: (0, 12), API_VERSIONS: (0, 4)}
REQUEST_TIMED_OUT = 7
TOPIC_ID = UUID(int=7)
OFFSET = 41
"""The answer to every question."""


@dataclass(slots=True)
class SlowBroker:
    """What it does with ListOffsets, and which timeouts were sent with them."""

    port: int = 0
    delay_s: float = 0.0
    quick_topics: tuple[str, ...] = ()
    error: int = 0
    error_count: float = math.inf
    """How many answers have the error."""
    topic_id: UUID | None = TOPIC_ID
    timeouts_ms: list[int] = field(default_factory=list)

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, request: Request) -> Values:
        if request.api_key == API_VERSIONS:
            keys = [
                {"api_key": key, "min_version": least, "max_version": most} for key, (least, most) in OFFERED.items()
            ]
            return {"error_code": 0 if request.body is not None else 35, "api_keys": keys}
        if request.api_key == METADATA:
            node = {"node_id": 0, "host": "127.0.0.1", "port": self.port, "rack": None}
            topics = [self._topic(topic.name) for topic in request.body.topics or ()]
            return {"brokers": [node], "cluster_id": "slow", "controller_id": 0, "topics": topics}
        self.timeouts_ms.append(round(request.body.timeout.total_seconds() * 1000))
        if not {topic.name for topic in request.body.topics} & {*self.quick_topics}:
            time.sleep(self.delay_s)
        error = self.error if len(self.timeouts_ms) <= self.error_count else 0
        found = -1 if error else OFFSET
        offset = {"error_code": error, "timestamp": -1, "offset": found, "leader_epoch": -1 if error else 0}
        return {
            "topics": [
                {"name": topic.name, "partitions": [{"partition_index": each.partition_index, **offset}]}
                for topic in request.body.topics
                for each in topic.partitions
            ]
        }

    def _topic(self, name: str) -> dict[str, Any]:
        partition = {
            "error_code": 0,
            "partition_index": 0,
            "leader_id": 0,
            "leader_epoch": 0,
            "replica_nodes": [0],
            "isr_nodes": [0],
            "offline_replicas": [],
        }
        return {
            "error_code": 0,
            "name": name,
            "topic_id": self.topic_id,
            "is_internal": False,
            "partitions": [partition],
        }


@contextmanager
def running_broker(**behaviour: Any) -> Iterator[SlowBroker]:
    """Run a broker until the end of the block."""
    broker = SlowBroker(**behaviour)

    class Connection(socketserver.StreamRequestHandler):
        disable_nagle_algorithm = True

        def handle(self) -> None:
            while len(size := self.rfile.read(4)) == 4:
                request = read_request(self.rfile.read(int.from_bytes(size, "big")), OFFERED)
                self.wfile.writelines(cast("list[bytes]", write_answer(request, broker.answer(request))))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, block_on_close = True, False

        def handle_error(self, *_: object) -> None:
            """A client that has gone is no error of the test."""

    with Server(("127.0.0.1", 0), Connection) as server:
        broker.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield broker
        finally:
            server.shutdown()
            thread.join()
