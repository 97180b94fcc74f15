"""Do Kafka's own tools read of the archive what they read of a broker?"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.tiered_broker import KAFKA_VERSION, broker_jars
from endpoint.conftest import Endpoint
from endpoint.support.truth import LEVELS, PLACES, Place, end_offset, log_start, true_records
from servers.kafka_jars import find_tool, run_tool


@pytest.fixture(scope="session")
def jars() -> Path:
    return broker_jars(KAFKA_VERSION)


def _run(jars: Path, tool: str, *arguments: str) -> list[str]:
    command = [find_tool("java"), "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{jars}/*", f"org.apache.kafka.tools.{tool}"]
    return run_tool([*command, *arguments]).splitlines()


def _offsets(lines: list[str]) -> dict[Place, int]:
    parts = [line.rsplit(":", 2) for line in lines if line.count(":") == 2 and " " not in line]
    return {(topic, int(partition)): int(offset) for topic, partition, offset in parts}


@pytest.mark.shows("get-offsets", "times")
def test_get_offset_shell_prints_the_ends_of_every_partition(endpoint: Endpoint, jars: Path) -> None:
    def offsets(time: str) -> dict[Place, int]:
        return _offsets(_run(jars, "GetOffsetShell", "--bootstrap-server", endpoint.address, "--time", time))

    assert offsets("earliest") == {place: log_start(place) for place in PLACES}
    assert offsets("latest") == {place: end_offset(place, "read_uncommitted") for place in PLACES}


@pytest.mark.shows("console-consumer", "{level}", "yes, offsets")
@pytest.mark.parametrize("level", LEVELS)
def test_console_consumer_prints_every_record_of_a_partition(endpoint: Endpoint, jars: Path, level: str) -> None:
    true = [row["o"] for row in true_records(("payments", 0), level)]
    lines = _run(
        jars,
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", endpoint.address, "--topic", "payments", "--partition", "0", "--offset", "earliest"),
        *("--isolation-level", level, "--max-messages", str(len(true))),
        *("--formatter-property", "print.offset=true", "--formatter-property", "print.value=false"),
    )
    assert [int(line.removeprefix("Offset:")) for line in lines if line.startswith("Offset:")] == true
