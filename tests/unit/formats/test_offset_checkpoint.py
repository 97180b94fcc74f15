"""Test offset checkpoints: written files are read, damage is refused with its line, no other error is raised."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.log_directory_writer import write_offset_checkpoint
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.offset_checkpoint import read_offset_checkpoint

PLACES = st.tuples(st.text("abz019._-", min_size=1, max_size=12), st.integers(0, 2**31 - 1))


@given(offsets=st.dictionaries(PLACES, st.integers(0, 2**63 - 1), max_size=5))
def test_offsets_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, offsets: dict[tuple[str, int], int]
) -> None:
    path: Path = tmp_path_factory.mktemp("checkpoint") / "file"
    write_offset_checkpoint(path, offsets)
    assert read_offset_checkpoint(memoryview(path.read_bytes())) == offsets


def test_empty_file_has_no_entries_and_every_newline_is_accepted() -> None:
    assert read_offset_checkpoint(memoryview(b"")) == {}
    assert read_offset_checkpoint(memoryview(b"0\r\n1\r\na 0 7\r\n")) == {("a", 0): 7}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"1\n0\n", "unknown version of an offset checkpoint"),
        (b"0\n", "malformed line 2: expected a number, found the end of the file"),
        (b"x\n0\n", "malformed line 1"),
        (b"0\n2\na 0 7\n", "wrong count at byte 1: expected 2 entries, found 1 entries"),
        (b"0\n1\na 0 71", "cut inside a line at byte 10"),
        (b"0\n1\na 0\n", "malformed line 3"),
        (b"0\n1\na 2147483648 0\n", "malformed line 3"),
        (b"0\n1\na 0 9223372036854775808\n", "malformed line 3"),
        (b"0\n1\n\xff 0 1\n", "malformed line 3"),
        (b"0\n2\na 0 1\na 0 1\n", "names a partition again in line 4"),
    ],
)
def test_damage_is_refused_with_its_line(text: bytes, message: str) -> None:
    with pytest.raises(ArchiveError, match=message) as refused:
        read_offset_checkpoint(memoryview(text))
    assert refused.value.reason is Reason.OFFSET_CHECKPOINT_INVALID


@given(text=st.one_of(st.binary(max_size=40), st.text("0123 \na-", max_size=30).map(str.encode)))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    with suppress(ArchiveError):
        read_offset_checkpoint(memoryview(text))
