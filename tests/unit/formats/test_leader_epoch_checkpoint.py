"""Test leader epoch checkpoints: a real broker's files, newlines of every platform, round trips and damage."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.formats.kafka.leader_epoch_checkpoint import (
    LeaderEpochCheckpoint,
    LeaderEpochEntry,
    read_leader_epoch_checkpoint,
    write_leader_epoch_checkpoint,
)
from worlds.kafka_sample import TIERED_STORAGE, golden_files, true_segments

STEPS = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 2**40)), max_size=10)


def lineage(*entries: tuple[int, int]) -> LeaderEpochCheckpoint:
    return LeaderEpochCheckpoint(
        entries=tuple(LeaderEpochEntry(leader_epoch=epoch, start_offset=offset) for epoch, offset in entries)
    )


def read_or_refusal(content: bytes) -> LeaderEpochCheckpoint | ArchiveError:
    try:
        return read_leader_epoch_checkpoint(memoryview(content))
    except ArchiveError as refused:
        return refused


def test_every_checkpoint_of_a_real_broker_round_trips_byte_for_byte() -> None:
    files = list(golden_files(".leader_epoch_checkpoint"))
    assert len(files) == 281
    assert max(len(read_leader_epoch_checkpoint(content).entries) for _, content in files) > 1
    for _, content in files:
        assert write_leader_epoch_checkpoint(read_leader_epoch_checkpoint(content)) == content


def test_lineage_of_a_real_segment_begins_inside_it_only_if_records_were_deleted() -> None:
    cut = set()
    for segment in true_segments("COPY_SEGMENT_FINISHED"):
        content = (TIERED_STORAGE / f"{segment['path']}.leader_epoch_checkpoint").read_bytes()
        entries = read_leader_epoch_checkpoint(memoryview(content)).entries
        assert entries[0].start_offset <= entries[-1].start_offset <= segment["end_offset"]
        if entries[0].start_offset > segment["start_offset"]:
            cut.add(segment["topic"])
    assert cut == {"records-deleted"}


@given(STEPS, st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from([" ", "\t", "  "]))
def test_every_newline_and_white_space_is_accepted(steps: list[tuple[int, int]], newline: str, space: str) -> None:
    entries = list(accumulate(steps, lambda low, step: (low[0] + step[0], low[1] + step[1])))
    lines = ["0", str(len(entries)), *(f"{epoch}{space}{offset}" for epoch, offset in entries)]
    text = "".join(line + newline for line in lines).encode()
    assert read_leader_epoch_checkpoint(memoryview(text)) == lineage(*entries)


@given(st.one_of(st.binary(max_size=60), st.text("0123456789 \n\r-+\t", max_size=40).map(str.encode)))
def test_any_bytes_parse_or_raise_archive_error(content: bytes) -> None:
    outcome = read_or_refusal(content)
    if isinstance(outcome, ArchiveError):
        assert outcome.reason is Reason.LEADER_EPOCH_CHECKPOINT_INVALID
        assert 0 <= outcome.position <= len(content)
    else:
        assert read_or_refusal(write_leader_epoch_checkpoint(outcome)) == outcome


def test_empty_checkpoint_has_no_entries() -> None:
    assert read_leader_epoch_checkpoint(memoryview(b"")) == lineage()


def test_checkpoint_cut_anywhere_is_refused() -> None:
    content = memoryview(write_leader_epoch_checkpoint(lineage((0, 0), (3, 120), (4, 1999))))
    for size in range(1, len(content)):
        with pytest.raises(ArchiveError):
            read_leader_epoch_checkpoint(content[:size])


@pytest.mark.parametrize(
    ("content", "position"),
    [
        (b"1\n0\n", 0),
        (b"0\n", 2),
        (b"0\n2\n0 0\n", 2),
        (b"0\n1\n0 0\n1 5\n", 2),
        (b"0\n1\n0 0 0\n", 4),
        (b"0\n1\n0\n", 4),
        (b"0\n1\n\n", 4),
        (b"0\n1\n-1 0\n", 4),
        (b"0\n1\n0 x\n", 4),
        (b"0\n1\n2147483648 0\n", 4),
        (b"0\n1\n0 9223372036854775808\n", 4),
        (b"0\n2\n1 5\n1 6\n", 8),
        (b"0\n2\n1 5\n2 5\n", 8),
        (b"0\n2\n2 5\n1 6\n", 8),
        ("0\n1\n٣ 0\n".encode(), 4),
        (b"0\n1\n0 12", 8),
    ],
)
def test_damage_is_refused_at_its_line(content: bytes, position: int) -> None:
    with pytest.raises(ArchiveError) as refused:
        read_leader_epoch_checkpoint(memoryview(content))
    assert (refused.value.reason, refused.value.position) == (Reason.LEADER_EPOCH_CHECKPOINT_INVALID, position)


@pytest.mark.parametrize("wrong", [b"7 7\n", b"x 900\n", b"900\r", b"2147483648 900\n", b"900 9223372036854775808\n"])
def test_first_wrong_line_of_many_is_named(wrong: bytes) -> None:
    sound = [b"%d %d\n" % (number + 20, number * 3 + 20) for number in range(40)]
    for number in range(1, 40):
        lines = [b"0\n", b"41\n", *sound[:number], wrong, *sound[number:-1], b"1 1\n"]
        with pytest.raises(ArchiveError) as refused:
            read_leader_epoch_checkpoint(memoryview(b"".join(lines)))
        assert refused.value.position == sum(map(len, lines[: number + 2]))


@pytest.mark.parametrize("entries", [((1, 5), (1, 6)), ((1, 5), (2, 5)), ((2**31, 0),), ((-1, 0),), ((0, -1),)])
def test_entries_that_could_not_be_read_are_not_written(entries: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(UsageError):
        write_leader_epoch_checkpoint(lineage(*entries))
