"""Frames of lz4 that are decompressed many at once give what the package gives one by one, and nothing it refuses."""

from __future__ import annotations

import random

import lz4.frame
import numpy as np
import numpy.typing as npt
import pytest

from coldlog.errors import ArchiveError
from coldlog.formats.kafka.compression import decompress_into
from coldlog.formats.kafka.lz4_frames import ADDRESS, LZ4_CODEC, Sections, decompress_lz4_batches

_ZSTD = 4
_WORDS = [bytes([65 + at]) * at for at in range(1, 26)]
TEXT = b"".join(random.Random(5).choices(_WORDS, k=20_000))
SHORT = TEXT[:300]

FRAMES = {
    "short": lz4.frame.compress(SHORT),
    "empty": lz4.frame.compress(b""),
    "blocks that need the one before": lz4.frame.compress(TEXT, block_size=lz4.frame.BLOCKSIZE_MAX64KB),
    "independent blocks": lz4.frame.compress(TEXT, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX64KB),
    "checksums": lz4.frame.compress(TEXT, content_checksum=True, block_checksum=True),
    "no size in the frame": lz4.frame.compress(SHORT, store_size=False),
    "incompressible": lz4.frame.compress(random.Random(6).randbytes(5_000)),
    "bytes after the end": lz4.frame.compress(SHORT) + b"more",
    "skippable": b"\x50\x2a\x4d\x18\x05\x00\x00\x00hello",
}


def decompress_at_once(
    frames: list[bytes],
    output: npt.NDArray[np.uint8],
    codecs: list[int] | None = None,
    used: int = 0,
    max_bytes: int = 1 << 20,
) -> list[bytes]:
    """What the loop decompresses of the frames, up to the first one that it leaves."""
    stops = np.cumsum([len(frame) for frame in frames], dtype=np.int64)
    sections = Sections(
        content=np.frombuffer(b"".join(frames) or b"\x00", dtype=np.uint8),
        begins=stops - np.array([len(frame) for frame in frames]),
        stops=stops,
        codecs=np.array(codecs or [LZ4_CODEC] * len(frames), dtype=np.int16),
    )
    ends = np.empty(len(frames), dtype=np.int64)
    following = decompress_lz4_batches(sections, 0, output, used, max_bytes, ends)
    begins = [used, *ends[:following].tolist()]
    return [output[begins[at] : begins[at + 1]].tobytes() for at in range(following)]


def one_by_one(frame: bytes) -> bytes | None:
    """What the package decompresses; None if it refuses the frame."""
    output = bytearray(1 << 20)
    try:
        return bytes(output[: decompress_into(LZ4_CODEC, memoryview(frame), memoryview(output))])
    except ArchiveError:
        return None


def buffer(size: int = 1 << 20) -> npt.NDArray[np.uint8]:
    return np.zeros(size, dtype=np.uint8)


def test_function_of_the_package_is_found() -> None:
    assert ADDRESS


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
def test_frames_are_decompressed_one_after_another_as_by_the_package(frame: bytes) -> None:
    between = FRAMES["short"]
    assert decompress_at_once([frame, between, frame], buffer()) == [one_by_one(frame), SHORT, one_by_one(frame)]


def test_frame_that_is_cut_or_changed_is_left_or_gives_what_the_package_gives() -> None:
    output = buffer()
    for name in ("short", "checksums", "no size in the frame"):
        frame = FRAMES[name][:400]
        cut = [frame[:size] for size in range(len(frame))]
        changed = [frame[:at] + bytes([frame[at] ^ 0x11]) + frame[at + 1 :] for at in range(len(frame))]
        for damaged in [*cut, *changed]:
            assert decompress_at_once([damaged], output) in ([], [one_by_one(damaged)])


def test_frame_after_one_that_was_left_is_decompressed() -> None:
    for left in (FRAMES["independent blocks"][:2_000], b"no frame of lz4", FRAMES["short"][:-4]):
        assert decompress_at_once([left], buffer()) == []
        assert decompress_at_once([FRAMES["short"]], buffer()) == [SHORT]


def test_frame_of_more_than_the_limit_is_left() -> None:
    frames = [FRAMES["short"]] * 2
    assert decompress_at_once(frames, buffer(), max_bytes=len(SHORT)) == [SHORT, SHORT]
    assert decompress_at_once(frames, buffer(), max_bytes=len(SHORT) - 1) == []


def test_nothing_is_written_before_the_used_bytes_or_after_the_end_of_the_buffer() -> None:
    output, end = buffer(4_000), 3_000
    output[:] = 7
    assert decompress_at_once([FRAMES["short"]], output[:end], used=200) == [SHORT]
    assert decompress_at_once([FRAMES["short"]] * 99, output[:end], used=200) != []
    assert decompress_at_once([FRAMES["independent blocks"]], output[:end]) == []
    assert output[end:].tolist() == [7] * 1_000
    output[:] = 7
    assert decompress_at_once([FRAMES["short"]] * 2, output, used=500) == [SHORT, SHORT]
    assert output[:500].tolist() == [7] * 500


def test_frame_without_room_after_others_is_left() -> None:
    room = len(SHORT) + 4 * len(FRAMES["short"])
    assert len(decompress_at_once([FRAMES["short"]] * 2, buffer(room))) == 2
    assert len(decompress_at_once([FRAMES["short"]] * 2, buffer(room - 1))) == 1


def test_batches_of_other_codecs_are_left() -> None:
    frames = [FRAMES["short"]] * 3
    assert decompress_at_once(frames, buffer(), codecs=[LZ4_CODEC, _ZSTD, LZ4_CODEC]) == [SHORT]
    assert decompress_at_once(frames, buffer(), codecs=[_ZSTD, LZ4_CODEC, LZ4_CODEC]) == []
