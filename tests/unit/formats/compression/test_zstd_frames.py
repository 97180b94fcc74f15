"""The end of a zstd frame is found by its headers (RFC 8878), so that a frame that was cut is told from a whole one."""

from __future__ import annotations

import pytest

from coldlog.formats.kafka.compression import zstd_frames_end

MAGIC = b"\x28\xb5\x2f\xfd"
WINDOW = b"\x00"
LAST_RAW_BLOCK = b"\x19\x00\x00abc"
LAST_RLE_BLOCK = b"\x2b\x00\x00a"

FRAMES = {
    "skippable": b"\x50\x2a\x4d\x18\x05\x00\x00\x00hello",
    "raw block": MAGIC + b"\x00" + WINDOW + LAST_RAW_BLOCK,
    "block of one byte repeated": MAGIC + b"\x00" + WINDOW + LAST_RLE_BLOCK,
    "content size of 1 byte": MAGIC + b"\x20" + bytes(1) + LAST_RAW_BLOCK,
    "content size of 2 bytes and a dictionary": MAGIC + b"\x41" + WINDOW + bytes(1 + 2) + LAST_RAW_BLOCK,
    "content size of 4 bytes": MAGIC + b"\x80" + WINDOW + bytes(4) + LAST_RAW_BLOCK,
    "content size of 8 bytes": MAGIC + b"\xc0" + WINDOW + bytes(8) + LAST_RAW_BLOCK,
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
def test_frame_ends_where_its_headers_say_and_nowhere_before(frame: bytes) -> None:
    behind = FRAMES["raw block"]
    assert zstd_frames_end(memoryview(frame))
    assert zstd_frames_end(memoryview(frame + behind))
    assert not any(zstd_frames_end(memoryview(frame[:size])) for size in range(1, len(frame)))
