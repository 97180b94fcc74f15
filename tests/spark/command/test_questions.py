"""Test the answers, output formats and exit codes of `coldlog lookup` and `coldlog offsets`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from coldlog.command.main import main
from coldlog.reader import OffsetReader
from worlds.golden_warehouse import golden_queries, is_true_answer

HEADERS = "topic   partition  asked                     offset  timestamp                 leader epoch  exact  error"


def _fails(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return exit code and error, which is one line; nothing is written to standard output."""
    code = main(argv)
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.count("\n") == 1
    return code, written.err


def test_lookup_shows_every_partition_of_the_topic(golden_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lookup", "orders", "2023-11-15T10:00Z", "-w", golden_uri]) == 0
    headers, _, *rows = capsys.readouterr().out.splitlines()
    assert headers == HEADERS
    assert [row.split() for row in rows] == [
        ["orders", "0", "2023-11-15T10:00:00.000Z", "2592", "2023-11-15T10:13:21.130Z", "4", "true"]
    ]


def test_lookup_of_a_file_answers_every_request_as_the_broker(
    golden_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = golden_queries()
    requests = tmp_path / "asked.csv"
    lines = [f"{query['topic']},{query['partition']},{query['ts']}" for query in asked]
    requests.write_text("\n".join(["topic,partition,timestamp_ms", *lines]) + "\n")
    main(["lookup", "--requests", str(requests), "--json", "-w", golden_uri])
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    pairs = list(zip(asked, answers, strict=True))
    assert [pair for pair in pairs if not is_true_answer(*pair, broker_compatible=False)] == []


@pytest.mark.parametrize("spec", ["latest-tiered", "-5"])
def test_offsets_answers_a_special_timestamp_by_name_and_number(
    spec: str, golden_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["offsets", "orders", spec, "-p", "0", "--json", "-w", golden_uri]) == 0
    (answer,) = map(json.loads, capsys.readouterr().out.splitlines())
    with OffsetReader(golden_uri) as reader:
        assert answer == reader.list_offsets([("orders", 0, -5)])[0]


def test_what_only_a_broker_knows_says_how_to_ask_it(golden_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("lookup", "offsets"):
        assert main([command, "orders", "latest", "-w", golden_uri]) == 1
        told = capsys.readouterr().err
        assert told.startswith(
            "coldlog: LOCAL_REQUIRED: only the broker knows this. latest-tiered is the last archived"
        )
        assert main([command, "orders", "latest", "--json", "-w", golden_uri]) == 1
        assert capsys.readouterr().err == ""


def test_an_answer_that_is_an_error_is_printed_and_gives_exit_code_1(
    golden_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lookup", "orders", "0", "-p", "0", "-p", "99", "-p", "0", "--json", "-w", golden_uri]) == 1
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["error"] for answer in answers] == [None, "UNKNOWN_TOPIC_OR_PARTITION"]


def test_a_time_later_than_the_archive_is_no_error(golden_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lookup", "orders", "now", "-w", golden_uri]) == 0
    assert "none: later than the archive" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["looukp"], "did you mean lookup?"),
        (["lookup", "orders"], "give TOPIC and a time"),
        (["lookup", "orders", "20231115"], "give it as 2023-11-15"),
        (["lookup", "orders", "1700042400000.5"], "not a timestamp"),
        (["lookup", "orders", "0", "-p", "-1"], "--partition -1"),
        (["lookup", "orders", "0", "--requests", "x.csv"], "not both"),
        (["lookup", "--requests", "none.csv"], "no such file of requests"),
        (["lookup", "nowhere", "0"], "does not know the topic 'nowhere'"),
        (["lookup", "orders", "0", "-p", "7"], "does not know partition 7 of topic 'orders'"),
        (["offsets", "orders", "-2", "-p", "7"], "does not know partition 7 of topic 'orders'"),
        (["lookup", "orders", "0", "--set", "warehouse.urj=x"], "did you mean warehouse.uri"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(
    arguments: list[str], error: str, golden_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ["-w", golden_uri] if len(arguments) > 1 else []
    code, line = _fails([*arguments, *here], capsys)
    assert code == 2
    assert error in line


def test_seconds_are_taken_as_milliseconds_and_a_line_says_so(
    golden_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for asked, told in (("1700042400", "1700042400 ms since the epoch is in 1970; if these are seconds"), ("5", "")):
        assert main(["lookup", "orders", asked, "--json", "-w", golden_uri]) == 0
        written = capsys.readouterr()
        assert json.loads(written.out)["offset"] == 0
        assert told in written.err
        assert written.err.count("\n") == int(told != "")


def test_a_question_writes_nothing(golden_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = _files(golden_uri)
    main(["offsets", "orders", "-2", "-w", golden_uri])
    main(["lookup", "orders", "0", "-w", golden_uri])
    assert _files(golden_uri) == before


def _files(folder: str) -> list[tuple[str, int]]:
    return sorted(
        (os.path.join(root, name), os.stat(os.path.join(root, name)).st_mtime_ns)
        for root, _, names in os.walk(folder)
        for name in names
    )


@pytest.mark.parametrize(
    ("options", "error", "offset"),
    [
        ([], "NONE", 3952),
        (["--leader-epoch", "6", "--timeout-ms", "60000"], "NONE", 3952),
        (["--leader-epoch", "5"], "FENCED_LEADER_EPOCH", None),
        (["--leader-epoch", "5", "--api-version", "3"], "UNSUPPORTED_VERSION", None),
        (["--api-version", "9"], "NONE", 3952),
    ],
)
def test_offsets_sends_the_fields_of_a_request(
    options: list[str], error: str, offset: int | None, golden_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["offsets", "orders", "latest-tiered", "-p", "0", "--json", "-w", golden_uri]
    assert main([*asked, *options]) == int(error != "NONE")
    (answer,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (answer["error"], answer["offset"]) == (error, offset)


def test_offsets_of_an_open_transaction_are_refused_to_readers_of_committed_records(
    golden_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for level, error in (("read_uncommitted", "NONE"), ("read_committed", "OPEN_TRANSACTION")):
        main(["offsets", "payments", "-3", "-p", "0", "--isolation-level", level, "--json", "-w", golden_uri])
        assert json.loads(capsys.readouterr().out)["error"] == error


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["orders", "-1", "--timeout-ms", "0"], "--timeout-ms is 0: expected 1 to"),
        (["orders", "-1", "--leader-epoch", "-2"], "--leader-epoch is -2: expected 0 to"),
        (["orders", "-1", "--api-version", "40000"], "--api-version is 40000: expected 0 to"),
        (["--requests", "asked.csv", "--api-version", "3"], "with --requests, the fields of a request are columns"),
    ],
)
def test_fields_of_a_request_that_are_none_are_refused(
    options: list[str], error: str, golden_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = _fails(["offsets", *options, "-w", golden_uri], capsys)
    assert code == 2
    assert error in told
