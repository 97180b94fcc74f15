"""Test that answers are written completely, in the formats that other programs read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from coldlog.errors import UsageError
from coldlog.lookups.answers import check_target, starting_offsets, write_json_lines
from coldlog.lookups.requests.rows import ANSWER_SCHEMA, LIST_OFFSETS_SCHEMA
from coldlog.model.list_offsets import ErrorCode

NONE, LOCAL_REQUIRED = ErrorCode.NONE, ErrorCode.LOCAL_REQUIRED


def _answers(*rows: tuple[str, int, int | None, str | None]) -> pa.Table:
    full = [
        {
            "topic": topic,
            "partition": partition,
            "timestamp_ms": 5,
            "offset": offset,
            "offset_timestamp_ms": None if offset is None else 6,
            "leader_epoch": None if offset is None else 0,
            "error": error,
        }
        for topic, partition, offset, error in rows
    ]
    return pa.Table.from_pylist(full, schema=ANSWER_SCHEMA)


def test_json_lines_have_one_object_per_request_in_order(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    write_json_lines(_answers(("b", 1, 7, None), ("a", 0, None, None), ("ü\n", 0, None, "UNKNOWN")), str(path))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["topic"] for line in lines] == ["b", "a", "ü\n"]
    assert lines[0] == {
        "topic": "b",
        "partition": 1,
        "timestamp_ms": 5,
        "offset": 7,
        "offset_timestamp_ms": 6,
        "leader_epoch": 0,
        "error": None,
        "is_exact": None,
        "passed_over_from_offset": None,
        "passed_over_to_offset": None,
    }
    assert lines[1]["offset"] is None
    assert [each.name for each in path.parent.iterdir()] == ["answers.jsonl"]


def _told(*rows: tuple[str, int, int, int | None, ErrorCode, int | None]) -> pa.Table:
    names = ("topic", "partition", "timestamp_ms", "offset", "error_code", "local_start_offset")
    full = [{**dict(zip(names, row, strict=True)), "error": row[4].name} for row in rows]
    return pa.Table.from_pylist(full, schema=LIST_OFFSETS_SCHEMA)


def test_starting_offsets_are_the_end_if_no_record_is_late_enough() -> None:
    text = starting_offsets(
        _told(("orders", 0, 5, 7, NONE, 90), ("orders", 10, 5, None, NONE, 90), ("x", 0, 5, 0, NONE, None))
    )
    assert json.loads(text) == {"orders": {"0": 7, "10": -1}, "x": {"0": 0}}


def test_starting_offsets_include_records_that_are_not_archived_yet() -> None:
    later = (("orders", 0, 5, None, LOCAL_REQUIRED, 90), ("orders", 1, 5, None, LOCAL_REQUIRED, None))
    text = starting_offsets(_told(*later, ("orders", 2, -1, None, LOCAL_REQUIRED, 90)))
    assert json.loads(text) == {"orders": {"0": 90, "1": -2, "2": -1}}


def test_starting_offsets_refuse_errors_and_repeated_partitions() -> None:
    with pytest.raises(UsageError, match="UNKNOWN_TOPIC"):
        starting_offsets(_told(("orders", 0, 5, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)))
    with pytest.raises(UsageError, match="asked for twice"):
        starting_offsets(_told(("orders", 0, 5, 1, NONE, None), ("orders", 0, 5, 2, NONE, None)))
    with pytest.raises(UsageError, match="LOCAL_REQUIRED"):
        starting_offsets(_told(("orders", 0, -4, None, LOCAL_REQUIRED, 90)))


def test_output_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the answers"):
        write_json_lines(_answers(("orders", 0, 1, None)), str(tmp_path / "file" / "answers.jsonl"))


def test_a_fifo_gets_the_lines_and_stays(tmp_path: Path) -> None:
    fifo = tmp_path / "answers"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_json_lines(_answers(("a", 0, 7, None)), str(fifo))
        assert json.loads(os.read(reader, 1 << 16))["offset"] == 7
    finally:
        os.close(reader)
    assert fifo.is_fifo()


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    link, file, device = tmp_path / "link", tmp_path / "file", tmp_path / "device"
    file.write_text("older answers")
    link.symlink_to(file)
    device.symlink_to("/dev/null")
    for path in (link, device):
        write_json_lines(_answers(("a", 0, 7, None)), str(path))
        assert path.is_symlink()
    assert json.loads(file.read_text())["offset"] == 7
    assert sorted(each.name for each in tmp_path.iterdir()) == ["device", "file", "link"]


def test_a_dash_is_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    check_target("-")
    write_json_lines(_answers(("a", 0, 7, None)), "-")
    assert json.loads(capsys.readouterr().out)["offset"] == 7
    assert not list(tmp_path.iterdir())


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_json_lines(_answers(("a", 0, 7, None)), str(path))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", [".", "", "n" * 256, "file/answers", "nul\0"])
def test_a_target_that_cannot_be_written_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    target = f"{tmp_path}/{name}"
    with pytest.raises(UsageError, match="cannot write the answers to"):
        check_target(target)
    with pytest.raises(UsageError, match="cannot write the answers to"):
        write_json_lines(_answers(("a", 0, 7, None)), target)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    target = tmp_path / "answrs" / "today" / "answers.jsonl"
    with pytest.raises(UsageError) as refused:
        check_target(str(target))
    assert str(refused.value) == (
        f"cannot write the answers to '{target}': no such folder: {target.parent}; make it, or correct the path"
    )
    with pytest.raises(UsageError, match="No such file or directory"):
        write_json_lines(_answers(("a", 0, 7, None)), str(target))
    assert not list(tmp_path.iterdir())
