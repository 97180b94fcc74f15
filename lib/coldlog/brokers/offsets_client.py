"""Ask partition leaders for offsets, ends of epochs and batches, over the connections of one client.

ListOffsets (kafka-python 3.0.12 has the versions up to 11, that of Kafka 4.2), OffsetForLeaderEpoch, Metadata and Fetch
are sent to the leader as messages of the client's protocol module. The client's public calls are not enough: they look
up the leader before each request, do not have EARLIEST_PENDING_UPLOAD, several questions for one partition or ends of
epochs, and hide markers and leader epochs. A request may name a partition only once. So each question for a partition
is a request of its own; they are sent without waiting for the answers.

The leader is looked up at the first request, and when it is no longer the leader; then the request is repeated a few
times before it fails. A client that did not answer is closed, and the next request creates a new one.

A request, and the wait for its answer, has the time until `deadline`, or the cluster's time-out if there is none.

Errors are those of `kafka_client`, and `AnsweredTooLateError` for a broker's REQUEST_TIMED_OUT; if it comes long before
the time is over, the broker is asked again. The answer for a partition that the cluster does not have is None.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from coldlog.brokers.kafka_client import CLOSE_S, Cluster, client_options, new_client, watched, written_topic_id
from coldlog.brokers.kafka_options import client_library
from coldlog.errors import AnsweredTooLateError, RetriableError

_ATTEMPTS, _PAUSE_S = 6, 0.1
_IN_FLIGHT = 32
_FETCH_VERSION = 12
"""The last version with topic names."""
_FETCH_WAIT_MS = 500
_MOST_FETCH_BYTES = 2**31 - 1
_MOST_MS = 2**31 - 1 - 60_000
_OUT_OF_RANGE, _REQUEST_TIMED_OUT = 1, 7
_NOT_NOW = frozenset({5, 6, 9, 74, 75, 76, 78})
"""No leader, not the leader, no replica, wrong leader epoch, not available yet."""

_Answer = TypeVar("_Answer")

_NO_TOPIC_ID = "A" * 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The leader of a partition and its epoch."""

    node_id: int
    leader_epoch: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetQuestion:
    """A time or one of Kafka's special timestamps, with read_committed or read_uncommitted."""

    timestamp_ms: int
    is_committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """An answer; a field is -1 if it has no value."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderOffsets:
    """One answer per question, and the leader that answered."""

    leader: Leader
    answers: Sequence[ListedOffset]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatches:
    """Batches from the one with the requested offset on; the last may be cut. None: the offset is out of range.
    `aborted` are, to read_committed, the producer and the first offset of the aborted transactions that overlap
    them."""

    content: bytes | None
    high_watermark: int
    topic_id: str | None = None
    aborted: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, kw_only=True)
class OffsetsClient:
    """A client for one process; it connects at the first request. `deadline` is in seconds of time.time()."""

    cluster: Cluster
    deadline: float | None = None
    _admin: Any = None
    _version: int | None = None
    _leaders: dict[tuple[str, int], Leader] = field(default_factory=dict)

    def newest_version(self) -> int:
        """The newest version of ListOffsets that both sides support."""

        async def ask(admin: Any) -> int:
            request = client_library().protocol.consumer.ListOffsetsRequest
            return int(admin._manager.broker_version_data.api_version(request))

        if self._version is None:
            self._version = self._ask("versions", ask)
        return self._version

    def list_offsets(
        self, topic: str, partition: int, questions: Sequence[OffsetQuestion], *, is_leader_asked: bool = False
    ) -> LeaderOffsets | None:
        """Send all questions at once; a broker answers them in order. `is_leader_asked`: look up the leader first."""

        async def ask(admin: Any, leader: Leader) -> LeaderOffsets:
            timeout_ms = self._timeout_ms
            requests = [self._list_offsets_request(topic, partition, question, timeout_ms) for question in questions]
            sent = [self._send(admin, request, leader) for request in requests]
            responses = [_partition_of(await response) for response in sent]
            answers = [
                ListedOffset(offset=found.offset, timestamp_ms=found.timestamp, leader_epoch=found.leader_epoch)
                for found in responses
            ]
            return LeaderOffsets(leader=leader, answers=answers)

        if is_leader_asked:
            self._leaders.pop((topic, partition), None)
        return self._ask_leader(topic, partition, ask)

    def end_offset_of_epoch(self, topic: str, partition: int, leader_epoch: int) -> int | None:
        """The end of an epoch: the next epoch's first offset, the log's end for the newest epoch, -1 for a later
        one."""

        async def ask(admin: Any, leader: Leader) -> int:
            request = client_library().protocol.consumer.OffsetForLeaderEpochRequest
            of_topic = request.OffsetForLeaderTopic
            of_partition = of_topic.OffsetForLeaderPartition(
                partition=partition, current_leader_epoch=-1, leader_epoch=leader_epoch
            )
            message = request(replica_id=-1, topics=[of_topic(topic=topic, partitions=[of_partition])])
            return int(_partition_of(await self._send(admin, message, leader)).end_offset)

        return self._ask_leader(topic, partition, ask)

    def fetch_batches(
        self,
        topic: str,
        partition: int,
        from_offset: int,
        max_bytes: int,
        *,
        is_committed: bool = False,
        is_leader_asked: bool = False,
    ) -> FetchedBatches | None:
        """Fetch batches, at least one if there is one; wait a short time if there is none. `is_committed`: with
        read_committed, which ends at the last stable offset. `is_leader_asked`: look up the leader first."""

        async def ask(admin: Any, leader: Leader) -> FetchedBatches:
            request, most_bytes = client_library().protocol.consumer.FetchRequest, min(max_bytes, _MOST_FETCH_BYTES)
            of_topic = request.FetchTopic
            of_partition = of_topic.FetchPartition(
                partition=partition, current_leader_epoch=-1, fetch_offset=from_offset, partition_max_bytes=most_bytes
            )
            message = request(
                max_wait_ms=min(_FETCH_WAIT_MS, self._timeout_ms // 2),
                min_bytes=1,
                max_bytes=most_bytes,
                isolation_level=int(is_committed),
                topics=[of_topic(topic=topic, partitions=[of_partition])],
                max_version=_FETCH_VERSION,
            )
            response = await self._send(admin, message, leader)
            fetched = response.responses[0].partitions[0]
            if fetched.error_code == _OUT_OF_RANGE:
                return FetchedBatches(content=None, high_watermark=fetched.high_watermark)
            _require_success(fetched.error_code)
            aborted = fetched.aborted_transactions or () if is_committed else ()
            return FetchedBatches(
                content=bytes(fetched.records or b""),
                high_watermark=fetched.high_watermark,
                topic_id=leader.topic_id,
                aborted=tuple((each.producer_id, each.first_offset) for each in aborted),
            )

        if is_leader_asked:
            self._leaders.pop((topic, partition), None)
        return self._ask_leader(topic, partition, ask)

    def close(self) -> None:
        """Close the client; does not wait long, nor fail, if the broker does not answer."""
        admin, self._admin, self._version = self._admin, None, None
        self._leaders.clear()
        if admin is not None:
            closing = threading.Thread(target=admin.close, name="coldlog-kafka-close", daemon=True)
            closing.start()
            closing.join(CLOSE_S)

    @property
    def _timeout_ms(self) -> int:
        if self.deadline is None:
            return self.cluster.timeout_ms
        return max(1, min(_MOST_MS, int((self.deadline - time.time()) * 1000)))

    def _send(self, admin: Any, message: object, leader: Leader) -> Any:
        """Send a message. The broker may use all of the time: its answer is waited for a moment longer."""
        patience_ms = self._timeout_ms + int(CLOSE_S * 1000)
        return admin._manager.send(message, node_id=leader.node_id, request_timeout_ms=patience_ms)

    def _ask_leader(
        self, topic: str, partition: int, question: Callable[[Any, Leader], Awaitable[_Answer]]
    ) -> _Answer | None:
        async def ask(admin: Any) -> _Answer | None:
            errors = client_library().errors
            for attempt in range(1, _ATTEMPTS + 1):
                given_ms, asked = self._timeout_ms, time.monotonic()
                try:
                    leader = await self._leader(admin, topic, partition)
                    return None if leader is None else await question(admin, leader)
                except AnsweredTooLateError:
                    # A broker answers so early if a remote lookup ends between two checks of
                    # DelayedRemoteListOffsets.tryComplete.
                    if attempt == _ATTEMPTS or (time.monotonic() - asked) * 1000 > given_ms / 2:
                        raise
                except errors.UnknownTopicOrPartitionError:
                    self._leaders.pop((topic, partition), None)
                    return None
                except (errors.BrokerResponseError, errors.KafkaConnectionError, errors.NodeNotReadyError) as failed:
                    self._leaders.pop((topic, partition), None)
                    is_final = isinstance(failed, errors.BrokerResponseError) and failed.errno not in _NOT_NOW
                    if is_final or attempt == _ATTEMPTS:
                        raise
                await admin._net.sleep(_PAUSE_S * attempt)
            return None

        return self._ask(_about(topic, partition), ask)

    async def _leader(self, admin: Any, topic: str, partition: int) -> Leader | None:
        known = self._leaders.get((topic, partition))
        if known is not None:
            return known
        request = client_library().protocol.metadata.MetadataRequest
        of_topic = request.MetadataRequestTopic(name=topic)
        metadata = await admin._manager.send(request(topics=[of_topic], allow_auto_topic_creation=False))
        for topic_metadata in metadata.topics:
            _require_success(topic_metadata.error_code)
            for found in topic_metadata.partitions:
                if found.partition_index == partition:
                    _require_success(found.error_code)
                    topic_id = written_topic_id(topic_metadata.topic_id)
                    leader = Leader(
                        node_id=found.leader_id,
                        leader_epoch=found.leader_epoch,
                        # Brokers without topic ids answer zero.
                        topic_id=None if topic_id == _NO_TOPIC_ID else topic_id,
                    )
                    self._leaders[topic, partition] = leader
                    return leader
        return None

    def _list_offsets_request(self, topic: str, partition: int, question: OffsetQuestion, timeout_ms: int) -> object:
        request = client_library().protocol.consumer.ListOffsetsRequest
        of_topic = request.ListOffsetsTopic
        of_partition = of_topic.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=-1, timestamp=question.timestamp_ms
        )
        return request(
            replica_id=-1,
            isolation_level=int(question.is_committed),
            topics=[of_topic(name=topic, partitions=[of_partition])],
            timeout_ms=timeout_ms,
        )

    def _ask(self, about: str, question: Callable[[Any], Awaitable[_Answer]]) -> _Answer:
        def ask() -> _Answer:
            if self._admin is None:
                options = {**client_options(self.cluster), "max_in_flight_requests_per_connection": _IN_FLIGHT}
                self._admin = new_client(client_library().KafkaAdminClient, options)
            admin = self._admin
            return admin._manager.run(question, admin)  # type: ignore[no-any-return]  # it ships no types

        try:
            return watched(replace(self.cluster, timeout_ms=self._timeout_ms), about, ask)
        except RetriableError:
            self.close()
            raise


def _about(topic: str, partition: int) -> str:
    return f"offsets of partition {partition} of topic {topic}"


def _partition_of(response: Any) -> Any:
    """The response of the only partition in a request."""
    answer = response.topics[0].partitions[0]
    _require_success(answer.error_code)
    return answer


def _require_success(error_code: int) -> None:
    if error_code == _REQUEST_TIMED_OUT:
        raise AnsweredTooLateError(
            "the broker could not answer in the time that it was given; give it more, or try again"
        )
    if error_code:
        raise client_library().errors.for_code(error_code)()
