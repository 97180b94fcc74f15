"""Do Kafka's tools for topics, offsets and groups get along with the endpoint?"""

from __future__ import annotations

import re

import pytest

from broker.tiered_broker import KAFKA_VERSION, broker_jars
from endpoint.apart.committed import committed_offsets
from endpoint.conftest import Endpoint
from endpoint.support.truth import LEVELS, PLACES, end_offset, true_records, true_times
from servers.kafka_jars import find_tool, run_tool

_PAYMENTS = [place for place in PLACES if place[0] == "payments"]


def run_kafka_tool(endpoint: Endpoint, tool: str, *arguments: str) -> str:
    """Run a program of kafka-tools."""
    java = [find_tool("java"), "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{broker_jars(KAFKA_VERSION)}/*"]
    return run_tool([*java, f"org.apache.kafka.tools.{tool}", "--bootstrap-server", endpoint.address, *arguments])


@pytest.mark.shows("topics", "topics")
def test_topics_are_listed_and_described(endpoint: Endpoint) -> None:
    assert run_kafka_tool(endpoint, "TopicCommand", "--list").split() == sorted({topic for topic, _ in PLACES})
    described = run_kafka_tool(endpoint, "TopicCommand", "--describe", "--topic", "payments")
    assert "PartitionCount: 3" in described
    assert re.findall(r"Partition: (\d+)\s+Leader: (\d+)", described) == [("0", "1"), ("1", "1"), ("2", "1")]


@pytest.mark.shows("get-offsets", "times")
def test_offsets_at_times_are_those_of_a_scan(endpoint: Endpoint) -> None:
    asked_ms, true = next(iter(true_times()[2].values()))
    topic, partition = next(iter(true_times()[2]))
    printed = run_kafka_tool(
        endpoint, "GetOffsetShell", "--topic-partitions", f"{topic}:{partition}", "--time", str(asked_ms)
    )
    assert printed.split() == [f"{topic}:{partition}:{true}"]
    printed = run_kafka_tool(endpoint, "GetOffsetShell", "--topic", "late.events", "--time", "max-timestamp")
    for line in printed.split():
        _, number, offset = line.split(":")
        rows = true_records(("late.events", int(number)), "read_uncommitted")
        assert int(offset) == max(rows, key=lambda row: (row["ts"], -row["o"]))["o"]


@pytest.mark.shows("console-consumer", "groups")
@pytest.mark.parametrize("level", LEVELS)
def test_a_member_of_a_group_reads_each_record_once_and_commits(endpoint: Endpoint, level: str) -> None:
    true = sorted((place[1], row["o"]) for place in _PAYMENTS for row in true_records(place, level))
    asked = ["--topic", "payments", "--group", f"of-console-{level}", "--from-beginning", "--isolation-level", level]
    shown = ["print.offset=true", "print.partition=true", "print.value=false"]
    printed = run_kafka_tool(
        endpoint,
        "consumer.ConsoleConsumer",
        *(*asked, "--max-messages", str(len(true))),
        *(part for each in shown for part in ("--formatter-property", each)),
    )
    found = re.findall(r"Partition:(\d+)\tOffset:(\d+)", printed)
    assert sorted((int(partition), int(offset)) for partition, offset in found) == true
    committed = committed_offsets(endpoint.address, f"of-console-{level}", _PAYMENTS)
    assert all(committed[place] > true_records(place, level)[-1]["o"] for place in _PAYMENTS)


@pytest.mark.shows("consumer-groups", "groups")
def test_a_group_is_reset_described_with_its_lag_and_deleted(endpoint: Endpoint) -> None:
    group = ["--group", "of-a-tool"]
    for place in _PAYMENTS:
        reset = ["--reset-offsets", "--topic", f"{place[0]}:{place[1]}", "--to-offset", "500", "--execute"]
        assert "500" in run_kafka_tool(endpoint, "consumer.group.ConsumerGroupCommand", *group, *reset)
    described = run_kafka_tool(endpoint, "consumer.group.ConsumerGroupCommand", *group, "--describe")
    rows = {
        int(line.split()[2]): list(map(int, line.split()[3:6])) for line in described.splitlines() if "payments" in line
    }
    ends = {place[1]: end_offset(place, "read_uncommitted") for place in _PAYMENTS}
    assert rows == {number: [500, end, end - 500] for number, end in ends.items()}
    assert "of-a-tool" in run_kafka_tool(endpoint, "consumer.group.ConsumerGroupCommand", "--list").split()
    run_kafka_tool(endpoint, "consumer.group.ConsumerGroupCommand", *group, "--delete")
    assert "of-a-tool" not in run_kafka_tool(endpoint, "consumer.group.ConsumerGroupCommand", "--list").split()
