"""Fill small tiered topics on a cluster while its leaders change.

    moved         written while leaders move, by every codec, with timestamps that go up and down
    transactions  committed, aborted, fenced; open while leaders change, while a broker is killed, past the tier
    recompressed  the broker compresses again, by a codec that changes
    appended      LogAppendTime and CreateTime in turn
    backwards     every timestamp is below the one before
    killed        its leader is killed in the middle of writing, and leads again
    late          broker 3 was down for long, fetches what it missed in large sets, leads and tiers
    rebuilt       the same, but what it missed is in the tier alone
    followed      written without tiering; when that is switched on, leaders are brokers that copied in large sets
    unclean       an election loses records that were not tiered; their offsets are used again
    lost          an election loses records that were tiered; their offsets are used again

Every name ends in the version, so that archives of several clusters can lie side by side. A rolling upgrade has a play
of its own, with the first six of these topics.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import pytest

from broker.kafka_cluster import NODES, KafkaCluster, Place
from broker.tiered_broker import NEWEST, broker_jars, small_segments
from servers.kafka_jars import find_tool, run_tool

MOVED, TRANSACTIONS, RECOMPRESSED, APPENDED, BACKWARDS = (
    "moved", "transactions", "recompressed", "appended", "backwards",
)  # fmt: skip
KILLED, LATE, REBUILT, FOLLOWED, UNCLEAN, LOST = "killed", "late", "rebuilt", "followed", "unclean", "lost"
START_MS = 1_700_000_000_000
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_RECORDS, _VALUE_BYTES = 8, 100
_TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1", "file.delete.delay.ms": "100"}
_DENSE = {"index.interval.bytes": "1024"}
_TOPICS: dict[str, tuple[list[list[int]], int, dict[str, str]]] = {
    MOVED: ([[1, 2, 3], [2, 3, 1]], 16_000, _TIERED | _DENSE),
    TRANSACTIONS: ([[1, 2, 3], [2, 3, 1]], 16_000, _TIERED | _DENSE),
    RECOMPRESSED: ([[3, 1, 2]], 12_000, _TIERED | _DENSE | {"compression.type": "zstd"}),
    APPENDED: ([[2, 1, 3]], 12_000, _TIERED | _DENSE),
    BACKWARDS: ([[1, 3, 2]], 12_000, _TIERED | _DENSE),
    KILLED: ([[1, 2, 3]], 16_000, _TIERED | _DENSE),
    LATE: ([[1, 3, 2]], 45_000, {"remote.storage.enable": "true"}),
    REBUILT: ([[2, 3, 1]], 16_000, _TIERED | _DENSE),
    FOLLOWED: ([[1, 3, 2], [1, 2, 3], [2, 1, 3]], 55_000, {}),
    UNCLEAN: ([[1, 2]], 12_000, _TIERED | _DENSE),
    LOST: ([[1, 2]], 12_000, _TIERED | _DENSE),
}
_OF_AN_UPGRADE = (MOVED, TRANSACTIONS, RECOMPRESSED, APPENDED, BACKWARDS, KILLED)
# Versions since 4.1 refuse small segment.bytes, those before do not know another name: an index that is full ends a
# segment in all of them.
_FULL_INDEX = {"segment.index.bytes": "132"}
_COMPRESSIONS = ("gzip", "uncompressed", "snappy", "lz4")


@dataclass(slots=True, kw_only=True)
class ClusterPlay:
    """A cluster, the program that writes to it, and how far each topic's timestamps are.

    `name` is the version, or both versions of an upgrade.
    """

    cluster: KafkaCluster
    name: str
    writer: subprocess.Popen[str]
    chance: random.Random = field(default_factory=lambda: random.Random(20261124))
    next_ms: dict[str, int] = field(default_factory=dict)
    open_ended: list[Place] = field(default_factory=list)
    codecs: Iterator[str] = field(default_factory=lambda: cycle(_CODECS))

    def play(self) -> None:
        """Everything, from new topics to silence."""
        for shape, (assignments, segment_bytes, configs) in _TOPICS.items():
            small = small_segments(self.name, segment_bytes)
            self.cluster.make_topic(self.topic(shape), assignments, configs | small)
        self._write_while_leaders_move()
        self._write_while_a_follower_is_down()
        self._lose_records()
        self._let_followers_tier()
        self._write_last()
        self._settle(list(_TOPICS))

    def play_upgrade(self, newer: str) -> None:
        """Replace one broker after the other by that version, while transactions are open; each leads afterwards."""
        for shape in _OF_AN_UPGRADE:
            assignments, _, configs = _TOPICS[shape]
            self.cluster.make_topic(self.topic(shape), assignments, configs | _FULL_INDEX)
        self._tell("begin long zstd")
        self._tell("begin kept none")
        for number in NODES:
            self._write_round(number)
            self.cluster.stop(number)
            self._write_round(number)
            self.cluster.start(number, version=newer)
            for shape in _OF_AN_UPGRADE:
                self._move(shape, 0, number)
        self._write_round(len(NODES))
        self._tell("abort long")
        self._tell("commit kept")
        for partition in (0, 1):
            self._batches(TRANSACTIONS, 20, partition)
        self._settle(_OF_AN_UPGRADE)

    def topic(self, shape: str) -> str:
        """The topic's name in this version's archive."""
        return f"{shape}-{self.name}"

    def place(self, shape: str, partition: int = 0) -> Place:
        """A partition of it."""
        return self.topic(shape), partition

    def _write_while_leaders_move(self) -> None:
        self._tell("begin long zstd")
        self._tell("begin kept none")
        for number, compression in enumerate(_COMPRESSIONS[:3]):
            self._write_round(number)
            for partition in (0, 1):
                self._move(MOVED, partition, (2, 3, 1)[(number + partition) % 3])
                self._move(TRANSACTIONS, partition, (3, 1, 2)[(number + partition) % 3])
            self.cluster.configure(self.topic(RECOMPRESSED), compression_type=compression)
            kind = "CreateTime" if number % 2 else "LogAppendTime"
            self.cluster.configure(self.topic(APPENDED), message_timestamp_type=kind)
            self._move(APPENDED, 0, (3, 1, 2)[number])
        self._tell("abort long")
        self._tell("commit kept")

    def _write_round(self, number: int) -> None:
        for partition in (0, 1):
            self._batches(MOVED, 12, partition)
            self._transactions(partition, number)
        for shape in (RECOMPRESSED, APPENDED, BACKWARDS, KILLED):
            self._batches(shape, 12)

    def _transactions(self, partition: int, number: int) -> None:
        for open_id in ("long", "kept"):
            self._send(open_id, partition)
        for count in range(3):
            self._tell(f"begin brief-{partition} {next(self.codecs)}")
            for _ in range(count + 1):
                self._send(f"brief-{partition}", partition)
            self._tell(f"{'abort' if (count + number) % 2 else 'commit'} brief-{partition}")
            self._batches(TRANSACTIONS, 2, partition)

    def _write_while_a_follower_is_down(self) -> None:
        self._tell("begin fenced gzip")
        self._send("fenced", 0)
        self.cluster.stop(3)
        self._tell("leave fenced")
        self._batches(LATE, 70, codec="none")
        self._batches(REBUILT, 36)
        self._batches(FOLLOWED, 90, 0, codec="none")
        for shape in (LATE, REBUILT):
            self._wait_for_tier(self.place(shape))
        leader = self.cluster.leaders(self.topic(REBUILT))[0]
        self.cluster.wait_until(
            lambda: len(self.cluster.local_logs(leader, self.place(REBUILT))) == 1, "deletion of what is tiered"
        )
        self.cluster.start(3)
        for shape in (LATE, REBUILT, FOLLOWED):
            self._move(shape, 0, 3)
        for shape in (LATE, REBUILT):
            self._batches(shape, 24, codec="none")
        # A producer of the same id aborts what the forgotten one left open.
        self._tell("begin fenced lz4")
        self._send("fenced", 0)
        self._tell("commit fenced")

    def _lose_records(self) -> None:
        """Broker 2 is down while 1 writes, then 1 is killed and 2 leads without what 1 wrote."""
        for shape in (UNCLEAN, LOST):
            self._batches(shape, 16)
        for place in (self.place(KILLED), self.place(TRANSACTIONS)):
            self._move(place[0].rpartition("-")[0], 0, 1)
        self.cluster.wait_until(lambda: 2 in self.cluster.in_sync(self.place(LOST)), "broker 2 to have all")
        self.cluster.stop(2)
        self._tell("begin long zstd")
        self._send("long", 0)
        self._batches(FOLLOWED, 90, 1, codec="none")
        self._batches(UNCLEAN, 4)
        self._batches(LOST, 32)
        self._wait_for_tier(self.place(LOST))
        self._batches(KILLED, 8)
        self.cluster.kill(1)
        self.cluster.start(2)
        for shape in (UNCLEAN, LOST):
            self.cluster.elect_unclean(self.place(shape), 2)
        self._send("long", 0)
        self._batches(KILLED, 12)
        self._batches(FOLLOWED, 90, 2, codec="none")
        for shape in (UNCLEAN, LOST):
            self._batches(shape, 48)
        self.cluster.start(1)
        self._move(FOLLOWED, 2, 1)
        self._move(FOLLOWED, 1, 2)
        self._move(KILLED, 0, 1)
        self._tell("abort long")

    def _let_followers_tier(self) -> None:
        self.cluster.configure(self.topic(FOLLOWED), remote_storage_enable="true")
        for partition in range(3):
            self._wait_for_tier(self.place(FOLLOWED, partition))
            self._batches(FOLLOWED, 12, partition, codec="none")

    def _write_last(self) -> None:
        """Round the topics off; one transaction ends after what is tiered, one never."""
        self._batches(RECOMPRESSED, 12)
        self.cluster.configure(self.topic(RECOMPRESSED), compression_type=_COMPRESSIONS[3])
        for shape in (MOVED, TRANSACTIONS):
            self._batches(shape, 16, partition=1)
        for shape in (MOVED, TRANSACTIONS, RECOMPRESSED, APPENDED, BACKWARDS, KILLED, UNCLEAN, LOST):
            self._batches(shape, 14)
        self._tell("begin late-to-end none")
        self._send("late-to-end", 1)
        self._batches(TRANSACTIONS, 20, 1)
        self._tell("commit late-to-end")
        self._tell("begin never-ended none")
        self._send("never-ended", 1)
        self.open_ended.append(self.place(TRANSACTIONS, 1))
        self._batches(TRANSACTIONS, 16, 1)

    def _settle(self, shapes: Sequence[str]) -> None:
        """Wait until all is tiered that can be; an open transaction keeps what comes after it from the tier."""
        for shape in shapes:
            for partition in range(len(_TOPICS[shape][0])):
                if self.place(shape, partition) not in self.open_ended:
                    self._wait_for_tier(self.place(shape, partition))
        self.cluster.wait_until_quiet()

    def _move(self, shape: str, partition: int, number: int) -> None:
        self.cluster.move_leader(self.place(shape, partition), number)

    def _wait_for_tier(self, place: Place) -> None:
        self.cluster.wait_until(lambda: self.cluster.is_tiered(place), f"uploads of {place}")

    def _batches(self, shape: str, count: int, partition: int = 0, codec: str | None = None) -> None:
        for _ in range(count):
            where = f"{self.topic(shape)} {partition} {codec or next(self.codecs)}"
            self._tell(f"batch {where} {_VALUE_BYTES} {self._times(shape)}")

    def _send(self, transaction: str, partition: int) -> None:
        where = f"{self.topic(TRANSACTIONS)} {partition}"
        self._tell(f"send {transaction} {where} {_VALUE_BYTES} {self._times(TRANSACTIONS)}")

    def _times(self, shape: str) -> str:
        """Timestamps of a batch's records: up and down, or down alone."""
        now = self.next_ms.get(shape, START_MS)
        self.next_ms[shape] = now + (-10_000 if shape == BACKWARDS else 5_000)
        if shape == BACKWARDS:
            return ",".join(str(now - 1_000 * index) for index in range(_RECORDS))
        return ",".join(str(now + self.chance.randrange(60_000)) for _ in range(_RECORDS))

    def _tell(self, line: str) -> None:
        assert self.writer.stdin is not None
        assert self.writer.stdout is not None
        self.writer.stdin.write(line + "\n")
        self.writer.stdin.flush()
        if self.writer.stdout.readline() != "done\n":
            pytest.fail(f"the writer failed at: {line}")


def compile_programs(classes: Path) -> str:
    """A class path with the programs of tests/broker/java and the newest clients, which know all brokers."""
    jars = broker_jars(NEWEST)
    sources = map(str, sorted((Path(__file__).parent / "java").glob("*.java")))
    run_tool([find_tool("javac"), "-Xlint:all", "-Werror", "-d", str(classes), "-cp", f"{jars}/*", *sources])
    return f"{classes}:{jars}/*"


@contextmanager
def cluster_play(cluster: KafkaCluster, name: str, class_path: str) -> Iterator[ClusterPlay]:
    """A play whose writer runs; its open transactions stay open."""
    program = [find_tool("java"), "-Xmx128m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    command = [*program, "-cp", class_path, "ClusterWriter", ",".join(cluster.bootstrap_servers), "20261124"]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield ClusterPlay(cluster=cluster, name=name, writer=writer)
    finally:
        writer.kill()
        writer.wait()
