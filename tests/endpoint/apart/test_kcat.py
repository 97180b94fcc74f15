"""Does kcat read of the archive what a broker gave?"""

from __future__ import annotations

import re
import shutil
import subprocess
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator

import pytest

from contents.record_rows import Row
from endpoint.apart.committed import committed_offsets
from endpoint.conftest import Endpoint
from endpoint.support.truth import LEVELS, PLACES, as_row, end_offset, true_records, true_times

_END = b"\n--\n"
_FORMAT = r"%p %o %T %K %S\n%k%s%h\n--\n"
_TOPICS = sorted({topic for topic, _ in PLACES})


def _kcat(endpoint: Endpoint, *arguments: str) -> bytes:
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.fail("kcat is needed; Debian has it as a package of this name")
    ran = subprocess.run([kcat, "-b", endpoint.address, *arguments], capture_output=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout


def _records(printed: bytes) -> Iterator[tuple[int, Row]]:
    """Partition and record; their lengths tell where key and value end, headers are as kcat prints them."""
    while printed:
        line, _, printed = printed.partition(b"\n")
        partition, offset, timestamp_ms, key_size, value_size = map(int, line.split())
        key, printed = _taken(printed, key_size)
        value, printed = _taken(printed, value_size)
        headers, _, printed = printed.partition(_END)
        yield partition, {**as_row(offset, timestamp_ms, key, value, []), "h": headers}


def _taken(printed: bytes, size: int) -> tuple[bytes | None, bytes]:
    return (None, printed) if size < 0 else (printed[:size], printed[size:])


def _as_printed(row: Row) -> Row:
    """A true record as kcat prints it: the value of a header ends before its first zero byte."""
    values = [b"NULL" if each is None else b64decode(each).partition(b"\0")[0] for _, each in row["h"]]
    headers = [name.encode() + b"=" + value for (name, _), value in zip(row["h"], values, strict=True)]
    return {**row, "h": b",".join(headers)}


def _true(topic: str, level: str) -> dict[int, list[Row]]:
    return {place[1]: list(map(_as_printed, true_records(place, level))) for place in PLACES if place[0] == topic}


def _by_partition(printed: bytes) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for partition, row in _records(printed):
        found.setdefault(partition, []).append(row)
    return found


@pytest.mark.shows("kcat", "topics")
def test_all_topics_are_listed(endpoint: Endpoint) -> None:
    listed = re.findall(r'topic "(\S+)" with (\d+) partitions', _kcat(endpoint, "-L").decode())
    assert {topic: int(count) for topic, count in listed} == Counter(topic for topic, _ in PLACES)


@pytest.mark.shows("kcat", "{level}")
@pytest.mark.parametrize("level", LEVELS)
def test_every_archived_record_is_the_one_that_the_broker_gave(endpoint: Endpoint, level: str) -> None:
    for topic in _TOPICS:
        printed = _kcat(
            endpoint, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", _FORMAT, "-X", f"isolation.level={level}"
        )
        assert _by_partition(printed) == _true(topic, level), topic


@pytest.mark.shows("kcat", "times")
def test_the_offset_at_a_time_is_that_of_a_scan_of_the_archive(endpoint: Endpoint) -> None:
    for asked in true_times():
        questions = [f"-t{topic}:{partition}:{time_ms}" for (topic, partition), (time_ms, _) in asked.items()]
        lines = re.findall(r"(\S+) \[(\d+)\] offset (-?\d+)", _kcat(endpoint, "-Q", *questions).decode())
        found = {(topic, int(partition)): int(offset) for topic, partition, offset in lines}
        assert found == {place: -1 if offset is None else offset for place, (_, offset) in asked.items()}


@pytest.mark.shows("kcat", "times")
def test_reading_starts_at_the_first_record_at_or_after_a_time(endpoint: Endpoint) -> None:
    rows = list(map(_as_printed, true_records(("orders", 0), "read_committed")))
    asked_ms = sorted(row["ts"] for row in rows)[len(rows) // 2]
    first = next(at for at, row in enumerate(rows) if row["ts"] >= asked_ms)
    printed = _kcat(endpoint, "-C", "-t", "orders", "-p", "0", "-o", f"s@{asked_ms}", "-e", "-q", "-f", _FORMAT)
    assert _by_partition(printed) == {0: rows[first:]}


@pytest.mark.shows("kcat", "groups")
def test_a_member_of_a_group_reads_each_record_once_and_commits(endpoint: Endpoint) -> None:
    true = _true("payments", "read_committed")
    count = str(sum(map(len, true.values())))
    options = ["-X", "auto.offset.reset=earliest", "-X", "isolation.level=read_committed"]
    printed = _kcat(endpoint, "-G", "of-kcat", "-q", "-c", count, "-f", _FORMAT, *options, "payments")
    assert _by_partition(printed) == true
    places = [place for place in PLACES if place[0] == "payments"]
    committed = committed_offsets(endpoint.address, "of-kcat", places)
    for place in places:  # Up to the last record, or also behind the markers after it.
        assert true[place[1]][-1]["o"] < committed[place] <= end_offset(place, "read_committed")


@pytest.mark.shows("kcat", "gaps", "error")
def test_it_ends_with_an_error_at_a_gap(strict: Endpoint) -> None:
    command = ["kcat", "-b", strict.address, "-C", "-t", "bad", "-p", "0", "-o", "beginning", "-e", "-f", "%o\n"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1
    assert list(map(int, ended.stdout.split())) == [*range(50)]
    assert "Invalid message" in ended.stderr
