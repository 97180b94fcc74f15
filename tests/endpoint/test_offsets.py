"""Are offsets by time those that the broker gave?"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from coldlog.model.list_offsets import SpecialTimestamp
from endpoint.conftest import Endpoint, serving
from endpoint.support.raw_client import connected, list_offsets
from endpoint.support.truth import PLACES
from worlds.golden_warehouse import golden_partitions, golden_queries, is_true_answer

Row = dict[str, Any]


def _ask(port: int, queries: list[Row], *, is_committed: bool) -> list[tuple[Row, Row]]:
    """Each query with the endpoint's answer; a request asks each partition once."""
    by_place: dict[object, list[Row]] = {}
    for query in queries:
        if (query["topic"], query["partition"]) not in PLACES:
            continue  # nothing of it is archived
        by_place.setdefault((query["topic"], query["partition"]), []).append(query)
    answered: list[tuple[Row, Row]] = []
    with connected(port) as client:
        for round_ in zip_longest(*by_place.values()):
            asked = [query for query in round_ if query is not None]
            places = [(str(each["topic"]), int(str(each["partition"])), int(str(each["ts"]))) for each in asked]
            response = client.ask(2, 11, list_offsets(places, is_committed=is_committed))
            for query, topic in zip(asked, response.topics, strict=True):
                (found,) = topic.partitions
                assert (topic.name, found.partition_index, found.error_code) == (query["topic"], query["partition"], 0)
                row = {
                    "offset": found.offset,
                    "offset_timestamp_ms": found.timestamp,
                    "leader_epoch": found.leader_epoch,
                }
                answered.append((query, row if found.offset >= 0 else dict.fromkeys(row)))
    return answered


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_time_that_is_asked_again_has_the_answer_of_the_first_time(endpoint: Endpoint, *, is_committed: bool) -> None:
    """The endpoint has it in memory then."""
    first, again = (_ask(endpoint.port, golden_queries(), is_committed=is_committed) for _ in range(2))
    assert again == first


def test_every_time_gives_the_offset_that_a_scan_of_the_archive_gives(endpoint: Endpoint) -> None:
    answered = _ask(endpoint.port, golden_queries(), is_committed=False)
    assert len(answered) > 9000
    assert not [pair for pair in answered if not is_true_answer(*pair, broker_compatible=False)]


def test_broker_compatible_gives_the_broker_s_offset_for_every_time(
    golden_uri: str, golden_archive: Path, tmp_path: Path
) -> None:
    with serving(tmp_path / "notes", golden_uri, golden_archive, "lookup.broker_compatible=true") as endpoint:
        answered = _ask(endpoint.port, golden_queries(), is_committed=False)
    assert not [pair for pair in answered if not is_true_answer(*pair, broker_compatible=True)]


@pytest.mark.parametrize(
    ("special", "name"), [(SpecialTimestamp.EARLIEST, "log_start"), (SpecialTimestamp.LATEST_TIERED, "archive_end")]
)
def test_the_first_and_the_last_archived_offset_are_the_broker_s(
    endpoint: Endpoint, special: SpecialTimestamp, name: str
) -> None:
    with connected(endpoint.port) as client:
        response = client.ask(2, 11, list_offsets([(*place, int(special)) for place in PLACES]))
    found = {(topic.name, topic.partitions[0].partition_index): topic.partitions[0].offset for topic in response.topics}
    true = {(row["topic"], row["partition"]): row[name] for row in golden_partitions()}
    assert found == {place: true[place] for place in PLACES}


def test_a_time_after_the_archive_has_no_offset_and_no_error(endpoint: Endpoint) -> None:
    with connected(endpoint.port) as client:
        response = client.ask(2, 11, list_offsets([("orders", 0, 2**62)]))
    (found,) = response.topics[0].partitions
    assert (found.error_code, found.offset, found.timestamp) == (0, -1, -1)


@pytest.mark.parametrize(("timestamp", "version"), [(-100, 11), (SpecialTimestamp.EARLIEST_LOCAL, 7)])
def test_a_special_timestamp_that_the_version_does_not_have_is_refused_for_its_partition(
    endpoint: Endpoint, timestamp: int, version: int
) -> None:
    asked = [("orders", 0, int(timestamp)), ("payments", 0, int(SpecialTimestamp.EARLIEST))]
    with connected(endpoint.port) as client:
        response = client.ask(2, version, list_offsets(asked, version=version))
    refused, answered = (topic.partitions[0] for topic in response.topics)
    assert (refused.error_code.name, refused.offset) == ("unsupported_version", -1)
    assert (answered.error_code, answered.offset >= 0) == (0, True)
