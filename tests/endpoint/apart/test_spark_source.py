"""Does Spark's Kafka source read of the archive what a broker gave, as a batch and as a stream?"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from broker.program_runner import run_program
from contents.record_rows import Row
from endpoint.conftest import Endpoint
from endpoint.support.truth import LEVELS, PLACES, Place, as_row, true_records

_NOT_FOR_SPARK = ("edge-times", 2)
"""Its last timestamps are too late for Spark's, and fail a query."""
_PLACES = [place for place in PLACES if place[0] != _NOT_FOR_SPARK[0]]
_KINDS = ("batch", "stream")
_AT = ("orders", 0)
_COLUMNS = ["topic", "partition", "offset", "unix_millis(timestamp) AS ts", "key", "value", "headers"]


def _case(endpoint: Endpoint, file: Path, **options: str) -> dict[str, object]:
    given = {"kafka.bootstrap.servers": endpoint.address, "includeHeaders": "true", **options}
    return {"format": "kafka", "options": given, "where": "true", "select": _COLUMNS, "file": str(file)}


@pytest.fixture(scope="module")
def read(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One Spark reads all topics, at both levels and in both ways; and one topic from a time on."""
    directory, cases = tmp_path_factory.mktemp("spark"), []
    topics = ",".join(sorted({topic for topic, _ in _PLACES}))
    for kind in _KINDS:
        for level in LEVELS:
            options = {"subscribe": topics, "startingOffsets": "earliest", "kafka.isolation.level": level}
            case = _case(endpoint, directory / f"{kind}-{level}", **options)
            cases.append({**case, "is_stream": kind == "stream"})
    at = {"subscribe": _AT[0], "startingTimestamp": str(_asked_ms())}
    cases.append(_case(endpoint, directory / "times", **at))
    run_program(cases, directory)
    return directory


def _asked_ms() -> int:
    times = sorted(row["ts"] for row in true_records(_AT, "read_uncommitted"))
    return int(times[len(times) // 2])


def _found(file: Path) -> dict[Place, list[Row]]:
    found: dict[Place, list[Row]] = defaultdict(list)
    for row in pq.read_table(file).to_pylist():
        headers = [(each["key"], each["value"]) for each in row["headers"] or ()]
        record = as_row(row["offset"], row["ts"], row["key"], row["value"], headers)
        found[row["topic"], row["partition"]].append(record)
    return {place: sorted(rows, key=lambda row: int(row["o"])) for place, rows in found.items()}


@pytest.mark.shows("spark-{kind}", "{level}")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", _KINDS)
def test_every_archived_record_is_the_one_that_the_broker_gave(read: Path, kind: str, level: str) -> None:
    found = _found(read / f"{kind}-{level}")
    assert not [place for place in _PLACES if found[place] != true_records(place, level)]


@pytest.mark.shows("spark-batch", "times")
def test_reading_starts_at_the_first_record_at_or_after_a_time(read: Path) -> None:
    rows, asked_ms = true_records(_AT, "read_uncommitted"), _asked_ms()
    first = next(at for at, row in enumerate(rows) if row["ts"] >= asked_ms)
    assert _found(read / "times") == {_AT: rows[first:]}


@pytest.mark.shows("spark-batch", "gaps", "error")
def test_a_batch_fails_at_a_gap(strict: Endpoint, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="corrupt message when fetching offset 50"):
        run_program([_case(strict, tmp_path / "bad", subscribe="bad", startingOffsets="earliest")], tmp_path)
