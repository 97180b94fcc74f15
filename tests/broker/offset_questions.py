"""offset_questions: what may a broker be asked of offsets, what does it answer, and what do its logs hold?

Questions go out as ListOffsets requests of the version that each names, by kafka-python's own messages. A broker of an
older Kafka knows fewer versions, and is asked by no others: it would take a special timestamp that it does not know for
a time. Logs, of the bucket and of the log directory, are read by kafka-python's own decoder: nothing of coldlog decides
what is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.record import MemoryRecords

from broker.scenario import admin
from broker.tiered_broker import KAFKA_VERSION, TieredBroker, is_since
from coldlog.model.list_offsets import UNKNOWN_EPOCH, ErrorCode, SpecialTimestamp
from coldlog.model.states import IsolationLevel

Place = tuple[str, int]
Told = tuple[int, int | None, int | None, int | None]
"""Error code, offset, timestamp and leader epoch."""
_NEWEST_BY_KAFKA = {(4, 2): 11, (4, 0): 10, (3, 9): 9, (3, 6): 8}
NEWEST_ASKED = next(newest for since, newest in _NEWEST_BY_KAFKA.items() if is_since(KAFKA_VERSION, since))
"""The newest version of ListOffsets that the broker knows."""
SPECIALS = tuple(each for each in SpecialTimestamp if each.since_version <= NEWEST_ASKED)
"""The special timestamps that it knows: latest-tiered since Kafka 3.9, earliest-pending-upload since 4.2."""
NAMES_THE_LATEST = is_since(KAFKA_VERSION, (3, 8))
"""Older brokers answer MAX_TIMESTAMP with the newest epoch of the log, 3.7 with the last offset of the batch too
(KAFKA-16310)."""
_AT_ONCE = 5
"""Requests that wait for their answers: the client never sends more by itself, and what waits beyond is given up."""
_NODE = 1
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a request of ListOffsets says of one partition."""

    place: Place
    timestamp_ms: int
    leader_epoch: int = UNKNOWN_EPOCH
    is_committed: bool = False
    version: int = NEWEST_ASKED

    @property
    def row(self) -> tuple[object, ...]:
        """As a row of our own requests."""
        level = IsolationLevel.READ_COMMITTED if self.is_committed else IsolationLevel.READ_UNCOMMITTED
        return (*self.place, self.timestamp_ms, self.leader_epoch, level.value, -1, self.version)


def ask_broker(broker: TieredBroker, questions: Sequence[Question]) -> list[Told]:
    """The broker's answers, in order; what it had no time for on a busy machine is asked again."""
    told = _ask_broker(broker, questions)
    for _ in range(_ATTEMPTS):
        late = [at for at, each in enumerate(told) if each[0] == ErrorCode.REQUEST_TIMED_OUT]
        if not late:
            break
        for at, answer in zip(late, _ask_broker(broker, [questions[at] for at in late]), strict=True):
            told[at] = answer
    return told


def _ask_broker(broker: TieredBroker, questions: Sequence[Question]) -> list[Told]:
    requests = list(_iter_requests(questions))
    told: dict[int, Told] = {}

    async def ask(client: Any) -> None:
        pending = iter(requests)
        while batch := list(islice(pending, _AT_ONCE)):
            sent = [client._manager.send(_request(questions, numbers), node_id=_NODE) for numbers in batch]
            for numbers, answer in zip(batch, sent, strict=True):
                response = await answer
                by_place = {
                    (topic.name, each.partition_index): each for topic in response.topics for each in topic.partitions
                }
                for number in numbers:
                    told[number] = _told(by_place[questions[number].place], questions[number].version)

    with admin(broker) as client:
        client._manager.run(ask, client)
    return [told[number] for number in range(len(questions))]


def ask_of_one_request(broker: TieredBroker, places: Sequence[Place], timestamp_ms: int) -> list[Told]:
    """Answers to a request that names these partitions, one of them twice perhaps."""
    questions = [Question(place=place, timestamp_ms=timestamp_ms) for place in places]
    answers: list[Told] = []

    async def ask(client: Any) -> None:
        response = await client._manager.send(_request(questions, range(len(questions))), node_id=_NODE)
        answers.extend(_told(each, NEWEST_ASKED) for topic in response.topics for each in topic.partitions)

    with admin(broker) as client:
        client._manager.run(ask, client)
    return answers


def _iter_requests(questions: Sequence[Question]) -> Iterator[list[int]]:
    """Numbers of questions that may be asked in one request: it names each partition once."""
    waiting: dict[tuple[int, bool], list[dict[Place, int]]] = {}
    nth: dict[tuple[int, bool, Place], int] = {}
    for number, question in enumerate(questions):
        kind = question.version, question.is_committed
        requests = waiting.setdefault(kind, [])
        at = nth.get((*kind, question.place), 0)
        nth[(*kind, question.place)] = at + 1
        if at == len(requests):
            requests.append({})
        requests[at][question.place] = number
    for requests in waiting.values():
        yield from (list(each.values()) for each in requests)


def _request(questions: Sequence[Question], numbers: Iterable[int]) -> object:
    of_topic = ListOffsetsRequest.ListOffsetsTopic
    asked = [questions[number] for number in numbers]
    topics = {question.place[0]: of_topic(name=question.place[0], partitions=[]) for question in asked}
    for question in asked:
        partition = of_topic.ListOffsetsPartition(
            partition_index=question.place[1],
            current_leader_epoch=question.leader_epoch,
            timestamp=question.timestamp_ms,
        )
        topics[question.place[0]].partitions.append(partition)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(asked[0].is_committed),
        topics=list(topics.values()),
        timeout_ms=30_000,
        max_version=asked[0].version,
    )


def _told(answer: Any, version: int) -> Told:
    numbers = (answer.offset, answer.timestamp, answer.leader_epoch if version >= 4 else -1)
    offset, timestamp_ms, leader_epoch = (None if number in (None, -1) else int(number) for number in numbers)
    return int(answer.error_code), offset, timestamp_ms, leader_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The records of one partition, of the bucket and of the log directory, by ascending offset.

    `open_from` maps the end offset of a tiered segment to the first offset of the oldest transaction open there.
    """

    offsets: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64]
    leader_epochs: npt.NDArray[np.int64]
    is_marker: npt.NDArray[np.bool_]
    batches: tuple[tuple[int, int, int, bool, bool], ...] = field(repr=False)

    def first_at_or_after(self, timestamp_ms: int, offsets: range) -> Told:
        """The lowest of the offsets whose record is as late."""
        found = (self.timestamps_ms >= timestamp_ms) & self._within(offsets)
        return self._told(int(np.argmax(found))) if found.any() else NOTHING_TOLD

    def latest(self, offsets: range) -> Told:
        """The lowest of the offsets whose record has the largest timestamp."""
        within = np.flatnonzero(self._within(offsets))
        return self._told(int(within[np.argmax(self.timestamps_ms[within])])) if len(within) else NOTHING_TOLD

    def stable_offset(self, end_offset: int) -> int:
        """The first offset of the oldest transaction that is open before the end; the end where none is."""
        is_open: dict[int, int] = {}
        for base_offset, last_offset, producer_id, is_transactional, is_control in self.batches:
            if last_offset < end_offset and is_transactional:
                if is_control:
                    is_open.pop(producer_id, None)
                else:
                    is_open.setdefault(producer_id, base_offset)
        return min(is_open.values(), default=end_offset)

    def _within(self, offsets: range) -> npt.NDArray[np.bool_]:
        flags: npt.NDArray[np.bool_] = (self.offsets >= offsets.start) & (self.offsets < offsets.stop)
        return flags

    def _told(self, at: int) -> Told:
        return 0, int(self.offsets[at]), int(self.timestamps_ms[at]), int(self.leader_epochs[at])


NOTHING_TOLD: Told = (0, None, None, None)


def read_log(broker: TieredBroker, place: Place) -> Log:
    """All that is there, below the log start too."""
    name = f"{place[0]}-{place[1]}"
    files = [*broker.tier.glob(f"*/{name}-*/*.log"), *(broker.data / name).glob("*.log")]
    rows: dict[int, tuple[int, int, bool]] = {}
    batches: dict[int, tuple[int, int, int, bool, bool]] = {}
    for path in files:
        _read_file(path, rows, batches)
    order = sorted(rows)
    columns = list(zip(*(rows[offset] for offset in order), strict=True)) or [(), (), ()]
    return Log(
        offsets=np.array(order, dtype=np.int64),
        timestamps_ms=np.array(columns[0], dtype=np.int64),
        leader_epochs=np.array(columns[1], dtype=np.int64),
        is_marker=np.array(columns[2], dtype=np.bool_),
        batches=tuple(batches[base] for base in sorted(batches)),
    )


def _read_file(
    path: Path, rows: dict[int, tuple[int, int, bool]], batches: dict[int, tuple[int, int, int, bool, bool]]
) -> None:
    records = MemoryRecords(path.read_bytes())
    while (batch := records.next_batch()) is not None:
        control = bool(batch.is_control_batch)
        for record in batch:
            rows[record.offset] = record.timestamp, batch.leader_epoch, control
        transactional = bool(batch.is_transactional)
        batches[batch.base_offset] = (
            batch.base_offset, batch.last_offset, batch.producer_id, transactional, control
        )  # fmt: skip
