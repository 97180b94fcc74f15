"""Test that `coldlog cat` prints the records that a consumer got, in the format asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.log_directory_writer import LOG_STARTS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.command.cat import compiled_format
from coldlog.command.main import main
from coldlog.errors import UsageError
from coldlog.fetcher import open_fetcher
from coldlog.model.fetch import FetchedRecord, FetchedRecords, TimestampType
from coldlog.runtime.installation import COMMAND
from servers.broker_tails import TAIL_MS, write_broker_tails
from worlds.written_topics import START_MS, copy_written

RECORD = FetchedRecord(
    offset=7,
    timestamp_ms=5,
    timestamp_type=TimestampType.CREATE_TIME,
    leader_epoch=0,
    key=None,
    value=b"\xffv",
    headers=(("a", b"1"), ("b", None)),
)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("%t-%p %o %T\\n", b"orders-3 7 5\n"),
        ("%K|%k|%S|%s", b"-1||2|\xffv"),
        ("%h\\t100%%\\x41\\\\", b"a=1,b=NULL\t100%A\\"),
    ],
)
def test_formats_have_the_letters_of_kcat(text: str, written: bytes) -> None:
    assert compiled_format(text)("orders", 3, RECORD) == written


@pytest.mark.parametrize("text", ["%z", "%", "\\q", "\\x4"])
def test_an_unknown_letter_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is unknown; use %t"):
        compiled_format(text)


def _fetched(uri: str, offset: int) -> list[FetchedRecord]:
    with open_fetcher([f"warehouse.uri={uri}"]) as fetcher:
        answer = fetcher.fetch_records("orders", 0, offset)
    assert isinstance(answer, FetchedRecords)
    return list(answer.records)


def test_records_from_an_offset_are_those_of_a_fetch(
    golden_uri: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["cat", "orders", "-p", "0", "-o", "2592", "-c", "5", "-f", "%o %s\\n", "-w", golden_uri]) == 0
    expected = [b"%d %s\n" % (record.offset, record.value or b"") for record in _fetched(golden_uri, 2592)[:5]]
    assert capfdbinary.readouterr().out == b"".join(expected)


def test_times_are_offsets_and_the_end_is_exclusive(golden_uri: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    between = ["--from", "2023-11-15T10:00Z", "--to", "2023-11-15T11:00Z"]
    assert main(["cat", "orders", *between, "--json", "-w", golden_uri]) == 0
    printed = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert main(["lookup", "orders", "2023-11-15T11:00Z", "--json", "-w", golden_uri]) == 0
    end = json.loads(capfdbinary.readouterr().out)["offset"]
    assert [record["offset"] for record in printed] == list(range(2592, end))


def test_the_last_records_and_those_that_match(golden_uri: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["cat", "orders", "-p", "0", "-p", "0", "-o", "-3", "-f", "%o ", "-w", golden_uri]) == 0
    assert capfdbinary.readouterr().out == b"3950 3951 3952 "
    value = _fetched(golden_uri, 2592)[0].value or b""
    assert main(["cat", "orders", "--grep", value.decode().replace("|", "."), "-f", "%o\\n", "-w", golden_uri]) == 0
    assert b"2592\n" in capfdbinary.readouterr().out


def test_cat_goes_on_in_the_log_directory_where_the_archive_ends(
    golden_uri: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    tail = write_broker_tails(tmp_path, {"payments"})["payments", 0]
    stable = min(first for first, _ in tail.fates.values())
    write_offset_checkpoint(tmp_path / LOG_STARTS, {("payments", 0): stable})
    segment = Segment(batches=(Batch(base_offset=0, records=(Record(timestamp_ms=5, value=b"v"),)),))
    write_partition(tmp_path, "new", 0, [segment])
    whole = ["-w", golden_uri, "--set", f"fetch.log_directory={tmp_path}"]

    def printed(*arguments: str) -> list[int]:
        assert main(["cat", *arguments, "-f", "%o ", *whole]) == 0
        return [int(offset) for offset in capfdbinary.readouterr().out.split()]

    expected = tail.whole_log(("payments", 0), is_committed=False)
    assert printed("payments", "-p", "0") == expected
    committed = tail.whole_log(("payments", 0), is_committed=True)
    assert printed("payments", "-p", "0", "--isolation-level", "read_committed") == committed
    last = [offset for offset in expected if offset >= tail.end - 7]
    assert printed("payments", "-p", "0", "-o", "-7") == last
    since, until = (f"s@{TAIL_MS + offset}" for offset in (tail.active, tail.end - 2))
    between = [offset for offset in tail.offsets if tail.active <= offset < tail.end - 2]
    assert printed("payments", "-p", "0", "-o", since, "--to", until.removeprefix("s@")) == between
    assert printed("new") == [0]


def test_lost_end_of_the_archive_is_an_error_after_the_records_before_it(
    written_uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    archive, warehouse, _ = copy_written(written_uri, tmp_path)
    places = ["-f", "%o ", "-w", str(warehouse), "--set", f"archive.uri={archive}"]
    sound = "".join(f"{offset} " for offset in range(100))
    for level in ("read_uncommitted", "read_committed"):
        assert main(["cat", "bad-end", *places, "--isolation-level", level]) == 1
        written = capfd.readouterr()
        assert written.out == sound
        assert "which begins at offset 100, is in quarantine" in written.err
    assert main(["cat", "torn", "-o", "-1", *places]) == 1
    written = capfd.readouterr()
    assert written.out == "144 "
    assert "is damaged from byte" in written.err
    assert "continues after it" not in written.err
    for earlier in (["-c", "100"], ["--to", str(START_MS + 99)]):
        assert main(["cat", "bad-end", *earlier, *places]) == 0
        assert capfd.readouterr() == (sound if "-c" in earlier else sound.removesuffix("99 "), "")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["-o", "3953"], 0, ""),
        (["-o", "5000"], 0, "orders-0 has offsets 0 to 3952, none from 5000 on"),
        (["-p", "7"], 2, f"does not know partition 7 of topic 'orders'; `{COMMAND} partitions orders` lists all"),
        (["--from", "now"], 0, "orders-0 has no record at or after this time; its offsets are 0 to 3952"),
        (["--from", "now", "--to", "2023-11-15"], 2, "--to 2023-11-15 is an earlier time"),
        (["-o", "s@soon"], 2, "not a timestamp"),
        (["-o", "middle"], 2, "expected an offset, beginning, -N or s@TIME"),
        (["--grep", "("], 2, "not a regular expression"),
        (["-f", "%z"], 2, "is unknown"),
    ],
)
def test_what_cannot_be_printed_is_one_line(
    arguments: list[str], code: int, error: str, golden_uri: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["cat", "orders", *arguments, "-w", golden_uri]) == code
    written = capfd.readouterr()
    assert written.out == ""
    assert error in written.err
    assert written.err.count("\n") == int(error != "")


def test_the_archive_of_another_warehouse_is_named_by_its_setting(
    golden_uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kafka-tiered-storage").mkdir()
    command = ["cat", "orders", "-c", "1", "-w", golden_uri, "--set", f"archive.uri={tmp_path}"]
    assert main(command) == 1
    assert capfd.readouterr().err.endswith(f"; archive.uri is {tmp_path} (--set)\n")


def test_a_layout_that_the_archive_does_not_have_is_refused_with_the_one_that_it_has(
    golden_uri: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["cat", "orders", "-c", "1", "-w", golden_uri, "--set", "archive.layout=aiven"]) == 2
    written = capfd.readouterr()
    assert (written.out, written.err.count("\n")) == ("", 1)
    assert written.err.endswith("this place has segments: set archive.layout=local_tiered_storage\n")


def test_a_partition_of_a_topic_that_is_not_there_names_the_nearest_topic(
    golden_uri: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["cat", "orderz", "-p", "0", "-w", golden_uri]) == 2
    hint = f"did you mean orders? `{COMMAND} topics` lists all"
    told = f"the warehouse {golden_uri} does not know the topic 'orderz': {hint}"
    assert capfd.readouterr() == ("", f"coldlog cat: {told}\n")
