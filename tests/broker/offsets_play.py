"""offsets_play: every kind of partition that offsets can be asked of, and what befalls it between comparisons.

    orders    tiered; partition 0 is cut inside an archived segment, partition 1 is whole
    kept      tiered, and all of it is still at the broker; cut inside a segment
    paid      tiered, transactional; the archive ends in a transaction that is ended behind it, the log in an open one
    again     tiered; deleted and made anew under another id, with more records, behind the back of the index
    brief     tiered; deleted and made anew before there is an index
    young     tiered; all it has is in its active segment
    fresh     tiered; empty at first
    plain     not tiered; partition 1 is cut inside a segment
    open      not tiered, transactional; ends in a transaction that is not ended
    bare      not tiered, empty

Timestamps go up and down; the latest of a cut segment lies below the cut, and the latest of all occurs twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from broker.offset_questions import Place, Question, ask_broker
from broker.scenario import BRIEF, MOST_TRANSACTION_MS, ORDERS, START_MS, TIERED, Scenario, admin, make_topic
from broker.tiered_broker import KAFKA_VERSION, TieredBroker, is_since, small_segments
from coldlog.archive.layouts.log_directory import HIGH_WATERMARK_CHECKPOINT, read_checkpoint
from coldlog.archive.stores.local_store import LocalStore
from coldlog.model.list_offsets import SpecialTimestamp

KEPT, PAID, AGAIN, YOUNG, FRESH = "kept", "paid", "again", "young", "fresh"
PLAIN, OPEN, BARE = "plain", "open", "bare"
PLACES: tuple[Place, ...] = (
    (ORDERS, 0), (ORDERS, 1), (KEPT, 0), (PAID, 0), (AGAIN, 0), (BRIEF, 0), (YOUNG, 0), (FRESH, 0), (PLAIN, 0),
    (PLAIN, 1), (OPEN, 0), (BARE, 0),
)  # fmt: skip
LOSES_CUTS = not is_since(KAFKA_VERSION, (3, 8))
"""Such a broker has trouble with a log start inside a tiered segment: after a restart its log starts where the segment
does (KAFKA-16146), and 3.6 passes over the segment when it looks for a time (KAFKA-16511). Tiered logs are cut where
segments begin."""
_SEGMENT_RECORDS = 20


def _cuts(wanted: dict[Place, int]) -> dict[Place, int]:
    """Where the logs are cut: inside segments, if the broker can keep that of a tiered one."""
    begins = {place: offset // _SEGMENT_RECORDS * _SEGMENT_RECORDS for place, offset in wanted.items()}
    return {place: begins[place] if LOSES_CUTS and place[0] != PLAIN else wanted[place] for place in wanted}


CUTS: dict[Place, int] = _cuts({(ORDERS, 0): 95, (KEPT, 0): 44, (PLAIN, 1): 75})
_SMALL = small_segments(KAFKA_VERSION, 11_000) | {"file.delete.delay.ms": "100"}
_MOVED = {**TIERED, **_SMALL}
_KEPT = {**_SMALL, "remote.storage.enable": "true"}
_TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    ORDERS: (2, _MOVED),
    KEPT: (1, _KEPT),
    PAID: (1, _MOVED),
    AGAIN: (1, _MOVED),
    BRIEF: (1, _MOVED),
    YOUNG: (1, _MOVED),
    FRESH: (1, _MOVED),
    PLAIN: (2, _SMALL),
    OPEN: (1, _SMALL),
    BARE: (1, _SMALL),
}
_LATE_MS, _LATEST_MS = START_MS + 500_000, START_MS + 900_000
_FUTURE_MS = 2_500_000_000_000
_TRANSACTED = (PAID, OPEN)


@dataclass(slots=True, kw_only=True)
class OffsetsPlay:
    """The broker, what was sent to it, and the transactions that nobody ends."""

    scenario: Scenario
    never_ended: list[KafkaProducer] = field(default_factory=list)

    @property
    def broker(self) -> TieredBroker:
        return self.scenario.broker

    def begin(self) -> None:
        """Everything is filled, cut, tiered and settled."""
        send = self.scenario.send
        for topic, (partition_count, configs) in _TOPICS.items():
            make_topic(self.broker, topic, partition_count=partition_count, configs=configs)
        send((BRIEF, 0), 60)
        # Late ones lie below the cut, in the segment that it cuts.
        send((ORDERS, 0), 230, {92: _LATE_MS})
        send((ORDERS, 1), 230, {60: _LATEST_MS, 100: _LATEST_MS, 229: _LATE_MS})
        send((KEPT, 0), 130, {42: _LATEST_MS, 63: _LATE_MS})
        send((AGAIN, 0), 100)
        send((YOUNG, 0), 15)
        send((PLAIN, 0), 100, {30: _LATEST_MS, 70: _LATEST_MS})
        send((PLAIN, 1), 150, {72: _LATE_MS})
        for topic in _TRANSACTED:
            self._send_transactions(topic)
        with admin(self.broker) as client:
            client.delete_records({TopicPartition(*place): offset for place, offset in CUTS.items()})
        self._wait_for_tier({place: CUTS.get(place, 0) for place in ((ORDERS, 0), (ORDERS, 1), (KEPT, 0), (PAID, 0))})
        self._wait_for_tier({(AGAIN, 0): 0, (BRIEF, 0): 0})
        self._make_anew(BRIEF, 30)
        self.settle()

    def restart(self) -> None:
        """The leader of every partition is another one, though it is the same broker."""
        self.broker.restart()
        self.broker.wait_until(self._answers, "answers after the restart")
        self.settle()

    def write_more(self) -> None:
        """Much that is tiered leaves the broker; some is tiered and stays, some is not tiered."""
        for place in ((ORDERS, 1), (KEPT, 0), (FRESH, 0), (PLAIN, 0)):
            self.scenario.send(place, 120)
        # The latest of all is tiered and gone from the broker.
        self.scenario.send((ORDERS, 0), 120, {250: _LATEST_MS + 5, 290: _LATEST_MS + 5})
        self._wait_for_tier({(ORDERS, 0): CUTS[ORDERS, 0], (ORDERS, 1): 0, (KEPT, 0): CUTS[KEPT, 0], (FRESH, 0): 0})
        self.settle()

    def cut_more(self) -> None:
        """Log starts move within the archive, and to where nothing was archived when the index was made."""
        cuts = _cuts({(ORDERS, 0): 135, (ORDERS, 1): 245, (KEPT, 0): 75, (PLAIN, 0): 44})
        with admin(self.broker) as client:
            client.delete_records({TopicPartition(*place): offset for place, offset in cuts.items()})
        self._wait_for_tier({place: cut for place, cut in cuts.items() if place[0] != PLAIN})
        self.settle()

    def make_anew(self) -> None:
        """An indexed topic is another one now, and longer."""
        self._make_anew(AGAIN, 160)
        self._wait_for_tier({(AGAIN, 0): 0})
        self.settle()

    def settle(self) -> None:
        """Nothing is announced any more, and checkpoints tell of the ends of all logs."""
        self.scenario.settle([])
        asked = [Question(place=place, timestamp_ms=SpecialTimestamp.LATEST) for place in PLACES]
        ends = {place: told[1] for place, told in zip(PLACES, ask_broker(self.broker, asked), strict=True)}
        store = LocalStore(root=str(self.broker.data), uri=str(self.broker.data))

        def is_told() -> bool:
            checkpoint = read_checkpoint(store, HIGH_WATERMARK_CHECKPOINT)
            return all(checkpoint.get(place, 0) == end for place, end in ends.items())

        self.broker.wait_until(is_told, "the checkpoint of high watermarks")

    def _answers(self) -> bool:
        asked = [Question(place=place, timestamp_ms=SpecialTimestamp.EARLIEST_LOCAL) for place in PLACES]
        with suppress(KafkaError):
            return all(told[0] == 0 for told in ask_broker(self.broker, asked))
        return False

    def _make_anew(self, topic: str, count: int) -> None:
        with admin(self.broker) as client:
            client.delete_topics([topic])
        self.broker.wait_until(lambda: not self.broker.tiered_logs(topic, 0), "the deletion of a topic in the tier")
        self.broker.wait_until(lambda: topic not in self.broker.topics(), "the deletion of a topic at the broker")
        make_topic(self.broker, topic, partition_count=1, configs=_TOPICS[topic][1])
        self.scenario.sent_ms[topic, 0] = []
        self.scenario.send((topic, 0), count)

    def _wait_for_tier(self, log_starts: dict[Place, int]) -> None:
        for place, log_start in log_starts.items():
            self.broker.wait_until(self._is_tiered(place, log_start), f"uploads and deletions of {place}")

    def _is_tiered(self, place: Place, log_start: int) -> Callable[[], bool]:
        def is_tiered() -> bool:
            tiered, local = list(self.broker.tiered_logs(*place)), self.broker.local_logs(*place)
            bases = sorted({*tiered, *local})
            is_cut = len(bases) < 2 or bases[1] > log_start
            return is_cut and bases[:-1] == tiered and (place[0] == KEPT or len(local) == 1)

        return is_tiered

    def _send_transactions(self, topic: str) -> None:
        """One committed, one aborted, one over several segments that is later than all markers, one never ended.

        What is behind the third one's last records is too small for another segment.
        """
        transactions = (
            ("commit", 25, START_MS),
            ("abort", 25, START_MS + 60_000),
            ("commit", 50, _FUTURE_MS),
            ("", 10, START_MS + 90_000),
        )
        for number, (ending, count, begin_ms) in enumerate(transactions):
            client = KafkaProducer(
                bootstrap_servers=self.broker.bootstrap_servers,
                transactional_id=f"{topic}-{number}",
                transaction_timeout_ms=MOST_TRANSACTION_MS,
                linger_ms=50,
            )
            client.init_transactions()
            client.begin_transaction()
            for index in range(count):
                value = self.scenario.chance.randbytes(500 if ending else 20)
                timestamp_ms = begin_ms + self.scenario.chance.randrange(90_000)
                client.send(topic, value, partition=0, timestamp_ms=timestamp_ms)
                if index % 5 == 4:
                    client.flush()
            if ending:
                client.commit_transaction() if ending == "commit" else client.abort_transaction()
                client.close()
            else:
                self.never_ended.append(client)


@contextmanager
def offsets_play(broker: TieredBroker) -> Iterator[OffsetsPlay]:
    """The play before its first act."""
    play = OffsetsPlay(scenario=Scenario(broker=broker))
    try:
        yield play
    finally:
        for each in play.never_ended:
            each.close(timeout=0)
