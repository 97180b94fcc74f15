"""Do Kafka's clients read of the archive what they read of the broker?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kafka
import pytest

from endpoint.conftest import Endpoint, serving
from endpoint.support.clients import FINDERS, READERS
from endpoint.support.truth import LEVELS, PLACES, end_offset, log_start, true_records, true_times


@pytest.mark.shows("{client}", "{level}")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("client", READERS)
def test_every_archived_record_is_the_one_that_the_broker_gave(endpoint: Endpoint, client: str, level: str) -> None:
    found = READERS[client](endpoint.address, PLACES, level)
    wrong = [place for place in PLACES if found[place] != true_records(place, level)]
    assert not wrong
    assert sum(map(len, found.values())) > 60_000


@pytest.mark.parametrize("level", LEVELS)
def test_every_record_arrives_though_no_log_was_indexed(
    golden_sidecar_uri: str, golden_archive: Path, tmp_path: Path, level: str
) -> None:
    with serving(tmp_path / "notes", golden_sidecar_uri, golden_archive) as endpoint:
        found = READERS["librdkafka"](endpoint.address, PLACES, level)
    assert not [place for place in PLACES if found[place] != true_records(place, level)]


@pytest.mark.shows("{client}", "times")
@pytest.mark.parametrize("client", FINDERS)
def test_the_offset_at_a_time_is_that_of_a_scan_of_the_archive(endpoint: Endpoint, client: str) -> None:
    for asked in true_times():
        found = FINDERS[client](endpoint.address, {place: timestamp_ms for place, (timestamp_ms, _) in asked.items()})
        assert found == {place: offset for place, (_, offset) in asked.items()}


@pytest.mark.parametrize("number", range(2))
def test_the_python_of_the_page_reads_from_a_time_to_the_end(endpoint: Endpoint, number: int) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "set-up-kafka-clients.md").read_text()
    (_, section) = page.split("\n## Python\n")
    examples = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    assert len(examples) == 2
    names: dict[str, Any] = {}
    exec(examples[number].replace("127.0.0.1:9092", endpoint.address), names)
    expected = [row for row in true_records(("orders", 0), "read_committed") if row["o"] >= 2592]
    assert [(offset, time) for offset, time, _ in names["read"]] == [(row["o"], row["ts"]) for row in expected]
    assert names["read"][0][2] == b"k222"


def test_the_log_begins_and_ends_where_the_archive_does(endpoint: Endpoint) -> None:
    for level in LEVELS:
        consumer = kafka.KafkaConsumer(bootstrap_servers=endpoint.address, isolation_level=level)
        places = [kafka.TopicPartition(*place) for place in PLACES]
        assert consumer.beginning_offsets(places) == {place: log_start(tuple(place)) for place in places}
        assert consumer.end_offsets(places) == {place: end_offset(tuple(place), level) for place in places}
        consumer.close()


def test_a_topic_that_is_not_archived_is_unknown_and_stays_so(endpoint: Endpoint) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=endpoint.address)
    assert not consumer.partitions_for_topic("no-such-topic")
    assert consumer.topics() == {topic for topic, _ in PLACES}
    consumer.close()
