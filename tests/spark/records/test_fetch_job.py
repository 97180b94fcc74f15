"""Test the job fetch_records from its arguments to its exit code."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.records.fetch_arguments import add_fetch_options
from coldlog.records.fetch_job import fetch
from coldlog.runtime.console import Console
from coldlog.runtime.installation import ROOT
from coldlog.runtime.job import PlainJob
from coldlog.runtime.settings_sources import load_settings
from fetching import true_records
from virtual_clock import VirtualClock


@pytest.fixture
def settings(golden_uri: str, golden_archive: Path) -> list[str]:
    return [f"warehouse.uri={golden_uri}", f"archive.uri={golden_archive}"]


def run(settings: list[str], *arguments: str) -> int:
    parser = job_argument_parser("fetch_records", "")
    add_fetch_options(parser)
    return run_plain_job(fetch, parser, [*arguments, *(each for pair in settings for each in ("--set", pair))])


def content(text: object) -> bytes | None:
    if isinstance(text, dict):
        return base64.b64decode(text["base64"])
    return None if text is None else str(text).encode()


def facts(row: dict[str, Any]) -> tuple[object, ...]:
    value = content(row["value"])
    printed = None if value is None else {"len": len(value), "crc32": zlib.crc32(value)}
    return row["offset"], row["timestamp_ms"], row["timestamp_type"], row["leader_epoch"], printed


def test_records_are_printed_as_json_lines_with_the_next_offset(
    settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--topic", "headers_and_big", "--partition", "0")
    assert run(settings, *place, "--max-records", "1200", "--max-bytes", "50000") == 0
    printed = capsys.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    truths = true_records("headers_and_big", 0)[:1200]
    assert [facts(row) for row in rows] == [(t["o"], t["ts"], t["tt"], t["le"], t["v"]) for t in truths]
    headers = [
        [[n, None if v is None else base64.b64encode(content(v) or b"").decode()] for n, v in row["headers"]]
        for row in rows
    ]
    assert headers == [each.get("h") or [] for each in truths]
    assert any(headers)
    assert printed.err == "next offset 1200; the archive has offsets 0 to 4860\n"


def test_job_makes_one_fetch_without_a_number_of_records(
    settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--topic", "payments", "--partition", "1", "--isolation-level", "read_committed")
    assert run(settings, *place, "--offset", "20", "--max-bytes", "1") == 0
    printed = capsys.readouterr()
    offsets = [json.loads(line)["offset"] for line in printed.out.splitlines()]
    following = int(printed.err.split()[2].rstrip(";"))
    assert offsets == [each["o"] for each in true_records("payments", 1) if each["rc"] and 20 <= each["o"] < following]
    assert run(settings, *place, "--offset", str(following), "--max-records", "100000") == 0
    rest = [json.loads(line)["offset"] for line in capsys.readouterr().out.splitlines()]
    assert rest[-1] == max(each["o"] for each in true_records("payments", 1) if each["rc"] and each["o"] < 875)


@pytest.mark.parametrize(
    ("arguments", "printed", "code"),
    [
        (
            ("--topic", "orders", "--partition", "0", "--offset", "4000"),
            "OFFSET_OUT_OF_RANGE: orders-0 at offset 4000: the archive has offsets 0 to 3952",
            1,
        ),
        (
            ("--topic", "orders", "--partition", "7"),
            "UNKNOWN_TOPIC_OR_PARTITION: the archive has no partition orders-7",
            1,
        ),
        (
            ("--topic", "orders", "--partition", "0", "--max-records", "0"),
            "--max-records 0: expected a whole number",
            2,
        ),
    ],
)
def test_failed_fetch_is_reported_in_one_line(
    settings: list[str], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], printed: str, code: int
) -> None:
    assert run(settings, *arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"spark-submit.sh fetch_records: {printed}")
    assert shown.err.count("\n") == 1


def test_job_keeps_the_read_quota_of_the_settings(settings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """300 kB at 10 kB per second: the job waits as long as each answer says."""
    slow = [
        *settings,
        "remote.log.manager.fetch.max.bytes.per.second=10000",
        "remote.log.reader.threads=1",
        "fetch.timeout_ms=0",
    ]
    parser = job_argument_parser("fetch_records", "")
    add_fetch_options(parser)
    arguments = ["--topic", "orders", "--partition", "0", "--max-bytes", "30000", "--max-records", "1000"]
    clock = VirtualClock(0)
    job = PlainJob(settings=load_settings("local", slow), arguments=parser.parse_args(arguments), console=Console())
    assert fetch(job, clock) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1_000
    assert len(clock.waits) >= 5
    # The last fetch is not paid yet.
    read_bytes = sum(each["size"] for each in batches_before(1_000))
    assert (read_bytes - 30_000) / 10 <= sum(clock.waits) <= (read_bytes + 30_000) / 10


def batches_before(offset: int) -> list[dict[str, Any]]:
    from contents.record_rows import true_batches

    return [each for each in true_batches("orders", 0) if each["base"] < offset]


def test_neither_the_job_nor_the_fetcher_starts_spark(settings: list[str]) -> None:
    command = [sys.executable, str(ROOT / "jobs" / "fetch_records.py"), "--topic", "orders", "--partition", "0"]
    command += ["--max-records", "3", *(each for pair in settings for each in ("--set", pair))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "next offset 3; the archive has offsets 0 to 3952\n")
    assert [json.loads(line)["offset"] for line in done.stdout.splitlines()] == [0, 1, 2]
    code = "import sys, coldlog.fetcher; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
