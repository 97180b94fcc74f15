"""Damage of many small parts is refused with work that grows as the bytes do; 100 MB of it once took half a minute."""

from __future__ import annotations

import gzip

import pytest
import zstandard

from coldlog.errors import ArchiveError
from coldlog.formats.kafka.compression import DECODERS, zstd_frames_end
from coldlog.formats.kafka.leader_epoch_checkpoint import read_leader_epoch_checkpoint
from counts.counted_calls import CountedBytes, count_calls

MEMBER = gzip.compress(b"", mtime=0)
XERIAL_HEAD = b"\x82SNAPPY\x00" + bytes(8)
COUNT, TIMES = 2_000, 4
MOST_TIMES = 5
"""Work that grows as the square of the bytes would be 16 times as much."""


def _work(codec: int, content: bytes) -> tuple[int, int]:
    """Return the calls of a decoder, and the bytes that it takes; it is called as `decompress_into` does."""
    section = CountedBytes(content)
    output = memoryview(bytearray(64))
    decode = DECODERS[codec][1]
    return count_calls(lambda: decode(section, output)), section.taken  # type: ignore[arg-type]  # see CountedBytes


@pytest.mark.parametrize(
    ("codec", "head", "part"),
    [
        (1, b"", MEMBER),
        (2, XERIAL_HEAD, bytes(4)),
        (2, XERIAL_HEAD, b"\x00\x00\x00\x01\x00"),
    ],
    ids=["gzip members", "empty snappy blocks", "snappy blocks of nothing"],
)
def test_four_times_as_many_empty_parts_are_four_times_the_work(codec: int, head: bytes, part: bytes) -> None:
    calls, taken = _work(codec, head + part * COUNT)
    more_calls, more_taken = _work(codec, head + part * COUNT * TIMES)
    assert more_calls <= MOST_TIMES * calls
    assert more_taken <= MOST_TIMES * taken


@pytest.mark.parametrize(
    ("head", "part"),
    [(b"", zstandard.compress(b"")), (b"", b"\x50\x2a\x4d\x18" + bytes(4)), (b"\x28\xb5\x2f\xfd\x00\x58", bytes(3))],
    ids=["frames", "skippable frames", "blocks"],
)
def test_four_times_as_many_empty_zstd_frames_are_four_times_the_work(head: bytes, part: bytes) -> None:
    def work(count: int) -> tuple[int, int]:
        section = CountedBytes(head + part * count)
        return count_calls(lambda: zstd_frames_end(section)), section.taken  # type: ignore[arg-type]  # see CountedBytes

    (calls, taken), (more_calls, more_taken) = work(COUNT), work(COUNT * TIMES)
    assert more_calls <= MOST_TIMES * calls
    assert more_taken <= MOST_TIMES * taken


@pytest.mark.parametrize("wrong", [b"0 0\n", b"x 900\n", b"2147483648 9223372036854775807\n"])
def test_the_wrong_one_of_many_leader_epochs_is_found_without_a_call_for_each(wrong: bytes) -> None:
    def work(count: int) -> int:
        lines = [b"%d %d\n" % (number, number) for number in range(1, count)]
        content = memoryview(b"".join([b"0\n", b"%d\n" % count, *lines, wrong]))

        def refuse() -> None:
            with pytest.raises(ArchiveError):
                read_leader_epoch_checkpoint(content)

        return count_calls(refuse)

    few, many = work(COUNT), work(COUNT * TIMES)
    assert many - few < 100, f"{few} calls for {COUNT} lines, {many} for {COUNT * TIMES}"
