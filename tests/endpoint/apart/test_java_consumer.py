"""Does Java's consumer read of the archive what a broker gave?"""

from __future__ import annotations

import pytest

from endpoint.apart.committed import committed_offsets
from endpoint.apart.printed_records import named, printed_offsets, printed_records, run_java
from endpoint.conftest import Endpoint
from endpoint.support.truth import LEVELS, PLACES, end_offset, true_records, true_times


@pytest.mark.shows("java", "{level}")
@pytest.mark.parametrize("level", LEVELS)
def test_every_archived_record_is_the_one_that_the_broker_gave(endpoint: Endpoint, level: str) -> None:
    found = printed_records(run_java("read", level, "-", endpoint.address, *named(PLACES)), PLACES)
    assert not [place for place in PLACES if found[place] != true_records(place, level)]


@pytest.mark.shows("java", "times")
def test_the_offset_at_a_time_is_that_of_a_scan_of_the_archive(endpoint: Endpoint) -> None:
    for asked in true_times():
        places = [f"{name}:{asked[place][0]}" for name, place in zip(named(asked), asked, strict=True)]
        found = printed_offsets(run_java("times", endpoint.address, *places))
        assert found == {place: offset for place, (_, offset) in asked.items()}


@pytest.mark.shows("java", "groups")
def test_a_member_of_a_group_reads_each_record_once_and_commits(endpoint: Endpoint) -> None:
    level, group = "read_committed", "of-java"
    places = [place for place in PLACES if place[0] in ("orders", "payments")]
    found = printed_records(run_java("read", level, group, endpoint.address, *named(places)), places)
    assert found == {place: true_records(place, level) for place in places}
    assert committed_offsets(endpoint.address, group, places) == {place: end_offset(place, level) for place in places}
