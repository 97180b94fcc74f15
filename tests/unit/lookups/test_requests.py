"""Test that requests are read unchanged, or refused with the line and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldlog.errors import UsageError
from coldlog.lookups.requests.requests_file import is_file_of_requests, read_requests_file
from coldlog.runtime.timestamps import timestamp_from_text


@pytest.mark.parametrize(
    ("text", "timestamp_ms"),
    [
        ("1767607200000", 1767607200000),
        ("-1", -1),
        ("2026-01-05T10:00:00Z", 1767607200000),
        ("2026-01-05T12:00:00.250+02:00", 1767607200250),
        ("2026-01-05 10:00", 1767607200000),
        ("2026-01-05t10:00:00z", 1767607200000),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_timestamp_is_epoch_milliseconds_or_a_time(text: str, timestamp_ms: int) -> None:
    assert timestamp_from_text(text) == timestamp_ms


@pytest.mark.parametrize(
    ("text", "before_ms"),
    [
        ("now", 0),
        ("2 hours ago", 7_200_000),
        ("1 Day ago", 86_400_000),
        ("90s ago", 90_000),
        ("3 weeks ago", 1814400000),
    ],
)
def test_timestamp_may_be_a_time_before_now(text: str, before_ms: int) -> None:
    assert timestamp_from_text(text, now_ms=1767607200000) == 1767607200000 - before_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700042400000.5", "give epoch milliseconds"),
        ("20231115", "give it as 2023-11-15"),
        ("20231115T100000Z", "ISO 8601"),
        ("2023-11-15 10:00 CET", "give the zone CET as an offset such as \\+01:00; give epoch milliseconds"),
        ("2023-11-15T10:00:00 Europe/Berlin", "the zone Europe/Berlin as an offset"),
        ("2 moons ago", "seconds, minutes, hours, days or weeks"),
        ("2023-11-31", "day is out of range"),
    ],
)
def test_text_that_could_be_misread_says_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=f"not a timestamp: .*{expected}"):
        timestamp_from_text(text)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z", "1.5", "٣", "--5", str(2**63), "9" * 5_000])
def test_other_text_is_not_a_timestamp(text: str) -> None:
    with pytest.raises(UsageError, match="not a timestamp"):
        timestamp_from_text(text)


def test_csv_keeps_order_repeated_rows_and_names(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(
        'who,partition,topic,timestamp_ms\na,1,orders,5\nb,0,null,-7\nc,1,orders,5\nd,2,"a,""b",9223372036854775807\n'
    )
    rows = read_requests_file(str(path)).to_pylist()
    asked = [(row["topic"], row["partition"], row["timestamp_ms"]) for row in rows]
    assert asked == [("orders", 1, 5), ("null", 0, -7), ("orders", 1, 5), ('a,"b', 2, 2**63 - 1)]
    assert [row["request_index"] for row in rows] == [0, 1, 2, 3]


def test_csv_of_a_spreadsheet_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_bytes(b"\xef\xbb\xbftopic,partition,timestamp_ms\r\norders,0,5\r\n")
    assert read_requests_file(str(path)).num_rows == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("topic,partition\norders,0\n", "missing: timestamp_ms"),
        ("topic,partition,timestamp_ms\norders,0,5\norders,zero,5\n", "line 3: partition: expected an integer"),
        (
            "topic,partition,timestamp_ms\norders,0,9223372036854775808\n",
            "timestamp_ms: expected an integer below [0-9]+, or a special",
        ),
        ("topic,partition,timestamp_ms\norders,2147483648,5\n", "line 2: partition: expected an integer below"),
        ("topic,partition,timestamp_ms\n,0,5\n", "line 2: topic: expected a name"),
        ("topic,partition,timestamp_ms\norders,0\n", "line 2: timestamp_ms"),
        ("topic,partition,timestamp_ms\norders,,5\n", "line 2: partition"),
        (
            "topic,partition,timestamp_ms\norders,0,1,700,042,400,000\n",
            "line 2: more values than columns in the first line",
        ),
        ("topic,partition,timestamp_ms,timestamp_ms\norders,0,5,6\n", "names timestamp_ms more than once"),
    ],
)
def test_error_in_csv_names_the_line(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(content)
    with pytest.raises(UsageError, match=complaint):
        read_requests_file(str(path))


def test_json_lines_are_read_and_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"topic": "orders", "partition": 0, "timestamp_ms": 5, "who": 1}\n\n')
    assert read_requests_file(str(path)).to_pylist()[0]["topic"] == "orders"
    for line, complaint in (("{", "line 1: not JSON"), ("[1]", "expected a JSON object")):
        path.write_text(line)
        with pytest.raises(UsageError, match=complaint):
            read_requests_file(str(path))
    path.write_text('{"topic": "orders", "partition": true, "timestamp_ms": 5}')
    with pytest.raises(UsageError, match="line 1: partition"):
        read_requests_file(str(path))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_requests_file(str(tmp_path / "none.csv"))


def test_optional_columns_are_read_and_names_like_null_are_names(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    names = "topic,partition,timestamp_ms,isolation_level,request_id,version,note"
    path.write_text(f"{names}\nNA,0,5,,null,,x\nnull,1,-2,read_committed,,7,\n", encoding="utf-8")
    rows = read_requests_file(str(path)).to_pylist()
    assert [(row["topic"], row["isolation_level"], row["request_id"], row["version"]) for row in rows] == [
        ("NA", None, "null", 11),
        ("null", "read_committed", None, 7),
    ]
    assert [(row["current_leader_epoch"], row["timeout_ms"]) for row in rows] == [(-1, -1), (-1, -1)]


def test_error_of_an_unknown_isolation_level_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("topic,partition,timestamp_ms,isolation_level\na,0,5,\nb,0,5,serializable\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 3: isolation_level: expected read_committed or read_uncommitted"):
        read_requests_file(str(path))


def test_line_breaks_in_quotes_do_not_end_a_row(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    filling = "filler,0,5,\n"
    head = "topic,partition,timestamp_ms,note\n" + filling * (((1 << 20) - 60) // len(filling))
    for padding in range(1, 40):
        path.write_text(head + f'{"x" * padding},0,5,\na,0,7,"\nb,1,6,"\n')
        asked = read_requests_file(str(path))
        assert asked.slice(asked.num_rows - 1).to_pylist()[0]["topic"] == "a"


def test_large_cells_of_other_columns_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(f"topic,partition,timestamp_ms,note\na,0,5,{'x' * 200_000}\nb,zero,5,\n")
    with pytest.raises(UsageError, match="line 3: partition"):
        read_requests_file(str(path))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            b'{"topic": "a", "partition": 0, "timestamp_ms": 5, "isolation_level": ["read_committed"]}',
            "isolation_level",
        ),
        (b'{"topic": "a\\ud800", "partition": 0, "timestamp_ms": 5}', "topic: expected a name"),
        (b'{"topic": "a", "partition": 0, "timestamp_ms": 5, "request_id": {"a": 1}}', "request_id: expected text"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_error_of_an_invalid_json_value_names_the_line(tmp_path: Path, line: bytes, complaint: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"topic": "a", "partition": 0, "timestamp_ms": 5}\n' + line + b"\n")
    with pytest.raises(UsageError, match=f"line 2: .*{complaint}"):
        read_requests_file(str(path))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("requests.csv", b"topic,partition,timestamp_ms\n\xff\xfe,0,5\n", "not UTF-8 .* at byte"),
        ("requests.jsonl", b'{"topic": "\xe9", "partition": 0, "timestamp_ms": 5}', "not UTF-8 .* at byte"),
        (
            "requests.csv",
            b"topic,partition,timestamp_ms\no,0," + b"9" * 5_000,
            "line 2: timestamp_ms: expected an integer",
        ),
        (
            "requests.jsonl",
            b'{"topic": "o", "partition": 0, "timestamp_ms": ' + b"9" * 5_000 + b"}",
            "line 1: not JSON",
        ),
    ],
)
def test_files_that_are_not_text_and_numbers_that_are_not_times_are_refused(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        read_requests_file(str(path))


LINE = '{"topic": "orders", "partition": 0, "timestamp_ms": 5}\n'


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ('{"topic": "orders", "partition": 0, "timestamp_ms": 5}, {}\n', "line 25001: not JSON"),
        ('{"topic": "orders", "partition": 0,\n"timestamp_ms": 5}\n', "line 25001: not JSON"),
        ('{"topic": "orders", "partition": true, "timestamp_ms": 5}\n', "line 25001: partition: expected an integer"),
        ('{"topic": "", "partition": 0, "timestamp_ms": 5}\n', "line 25001: topic: expected a name"),
        ('{"topic": "\\ud800", "partition": 0, "timestamp_ms": 5}\n', "line 25001: topic: expected a name"),
        ('{"topic": "orders", "partition": 0}\n', "line 25001: timestamp_ms: expected an integer"),
        ("7\n", "line 25001: expected a JSON object, found int"),
    ],
)
def test_wrong_line_among_many_is_named(tmp_path: Path, lines: str, complaint: str) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text(LINE * 25_000 + lines + LINE * 5)
    with pytest.raises(UsageError, match=f"{requests}, {complaint}"):
        read_requests_file(str(requests))


def test_many_json_lines_are_read_in_order_with_their_optional_columns(tmp_path: Path) -> None:
    requests = tmp_path / "requests.jsonl"
    optional = '\n{"topic": "orders", "partition": "7", "timestamp_ms": -1, "timeout_ms": 9, "note": 1}\n\n'
    requests.write_text(LINE * 12_000 + optional + LINE * 12_000)
    table = read_requests_file(str(requests))
    assert table["request_index"].to_pylist() == list(range(24_001))
    assert table.slice(11_999, 3).select(["partition", "timestamp_ms", "timeout_ms"]).to_pylist() == [
        {"partition": 0, "timestamp_ms": 5, "timeout_ms": -1},
        {"partition": 7, "timestamp_ms": -1, "timeout_ms": 9},
        {"partition": 0, "timestamp_ms": 5, "timeout_ms": -1},
    ]


def test_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    unreadable = tmp_path / "requests.csv"
    unreadable.symlink_to("/proc/self/mem")
    for path in (str(unreadable), str(tmp_path / ("x" * 256 + ".jsonl"))):
        assert is_file_of_requests(path)
        with pytest.raises(UsageError, match=f"^{path}: this file of requests cannot be read: "):
            read_requests_file(path)
