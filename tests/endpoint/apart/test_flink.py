"""Does Flink's Kafka source read of the archive what a broker gave?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from endpoint.apart.printed_records import printed_records
from endpoint.conftest import Endpoint
from endpoint.support.truth import LEVELS, PLACES, end_offset, true_records
from servers.kafka_jars import find_tool, resolve_jars, run_tool

_HERE = Path(__file__).parent / "flink_reader"
_AT = ("orders", 0)
_OPEN = {place[0] for place in PLACES if len({end_offset(place, level) for level in LEVELS}) > 1}
"""Topics with a transaction that is open at the archive's end. Flink waits there for the end of the log, as it would
with a broker."""
Read = Callable[..., str]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Run ReadTopics.java."""
    classes, jars = tmp_path_factory.mktemp("flink"), resolve_jars(_HERE / "pom.xml", "flink-jars")
    run_tool([find_tool("javac"), "-cp", f"{jars}/*", "-d", str(classes), str(_HERE / "ReadTopics.java")])
    # As Flink's own scripts, for the part of its runtime that looks into Java's classes.
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util", "time")]
    java = [find_tool("java"), "-Xmx1g", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *opened]
    return lambda *arguments: run_tool([*java, "-cp", f"{classes}:{jars}/*", "ReadTopics", *arguments])


@pytest.mark.shows("flink", "{level}")
@pytest.mark.parametrize("level", LEVELS)
def test_every_archived_record_is_the_one_that_the_broker_gave(endpoint: Endpoint, read: Read, level: str) -> None:
    places = [place for place in PLACES if level == "read_uncommitted" or place[0] not in _OPEN]
    topics = ",".join(sorted({topic for topic, _ in places}))
    found = printed_records(read(level, endpoint.address, topics), places)
    assert not [place for place in places if found[place] != true_records(place, level)]


@pytest.mark.shows("flink", "times")
def test_reading_starts_at_the_first_record_at_or_after_a_time(endpoint: Endpoint, read: Read) -> None:
    rows = true_records(_AT, "read_uncommitted")
    asked_ms = sorted(row["ts"] for row in rows)[len(rows) // 2]
    first = next(at for at, row in enumerate(rows) if row["ts"] >= asked_ms)
    found = printed_records(read("read_uncommitted", endpoint.address, _AT[0], str(asked_ms)), [_AT])
    assert found[_AT] == rows[first:]


@pytest.mark.shows("flink", "gaps", "error")
def test_a_job_fails_at_a_gap(strict: Endpoint, read: Read) -> None:
    with pytest.raises(pytest.fail.Exception, match="offset 50"):
        read("read_uncommitted", strict.address, "bad")
