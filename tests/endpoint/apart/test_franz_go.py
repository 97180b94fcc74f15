"""Does franz-go read of the archive what a broker gave?"""

from __future__ import annotations

from pathlib import Path

import pytest

from contents.record_rows import Row
from endpoint.apart.committed import committed_offsets
from endpoint.apart.printed_records import build_franz_reader, named, printed_records
from endpoint.conftest import Endpoint
from endpoint.support.truth import LEVELS, PLACES, Place, end_offset, true_records
from servers.kafka_jars import run_tool


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_franz_reader(tmp_path_factory.mktemp("franz-go"))


def _read(reader: Path, endpoint: Endpoint, places: list[Place], *options: str) -> dict[Place, list[Row]]:
    return printed_records(run_tool([str(reader), *options, endpoint.address, *named(places)]), places)


def _as_franz_go_has_it(row: Row) -> Row:
    """Return a record with the timestamp that franz-go gives: it counts nanoseconds in 64 bits, up to the year 2262."""
    nanoseconds = row["ts"] * 1_000_000
    return {**row, "ts": ((nanoseconds + (1 << 63)) % (1 << 64) - (1 << 63)) // 1_000_000}


@pytest.mark.shows("franz-go", "{level}")
@pytest.mark.parametrize("level", LEVELS)
def test_every_archived_record_is_the_one_that_the_broker_gave(endpoint: Endpoint, reader: Path, level: str) -> None:
    found = _read(reader, endpoint, PLACES, "-level", level)
    true = {place: list(map(_as_franz_go_has_it, true_records(place, level))) for place in PLACES}
    assert not [place for place in PLACES if found[place] != true[place]]


@pytest.mark.shows("franz-go", "times")
@pytest.mark.parametrize("place", [("orders", 0), ("late.events", 0), ("clock-switch", 0)], ids=lambda place: place[0])
def test_reading_starts_at_the_first_record_at_or_after_a_time(endpoint: Endpoint, reader: Path, place: Place) -> None:
    rows = true_records(place, "read_uncommitted")
    asked_ms = sorted(row["ts"] for row in rows)[len(rows) // 2]
    first = next(at for at, row in enumerate(rows) if row["ts"] >= asked_ms)
    assert first > 0
    assert _read(reader, endpoint, [place], "-from-ms", str(asked_ms)) == {place: rows[first:]}


@pytest.mark.shows("franz-go", "groups")
def test_a_member_of_a_group_reads_each_record_once_and_commits(endpoint: Endpoint, reader: Path) -> None:
    level, group = "read_committed", "of-franz-go"
    places = [place for place in PLACES if place[0] in ("orders", "payments")]
    found = _read(reader, endpoint, places, "-level", level, "-group", group)
    assert found == {place: true_records(place, level) for place in places}
    assert committed_offsets(endpoint.address, group, places) == {place: end_offset(place, level) for place in places}
