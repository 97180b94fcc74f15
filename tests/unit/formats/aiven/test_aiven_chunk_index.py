"""Test the chunk lists of the Aiven plugin: packed lists are read, damaged ones are refused."""

from __future__ import annotations

import base64
import json
import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from builders.aiven_writer import pack_sizes
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.aiven.chunk_index import (
    INT32_MAX,
    MAX_SIZES_BYTES,
    FixedChunkIndex,
    read_chunk_sizes,
    read_variable_chunk_index,
)
from worlds.aiven_sample import VARIANTS, archive_of


def packed(content: bytes) -> str:
    return base64.b64encode(zstandard.ZstdCompressor().compress(content)).decode()


@given(st.lists(st.integers(0, INT32_MAX), max_size=30))
def test_every_list_of_sizes_is_read_as_it_was_packed(sizes: list[int]) -> None:
    assert read_chunk_sizes(packed(pack_sizes(sizes))).tolist() == sizes


@pytest.mark.parametrize("spread", [0, 0xFF, 0x100, 0xFFFF, 0x10000, 0xFFFFFF, 0x1000000, INT32_MAX - 7])
def test_differences_of_every_width_are_read(spread: int) -> None:
    sizes = [7, 7 + spread, 7 + spread // 2, 3]
    content = pack_sizes(sizes)
    assert content[8] == max(1, (spread.bit_length() + 7) // 8)
    assert read_chunk_sizes(packed(content)).tolist() == sizes


def test_sizes_in_real_archives_add_up_to_their_objects() -> None:
    widths = set()
    for variant in VARIANTS:
        for path in archive_of(variant).glob("*/*/*.rsm-manifest"):
            text = path.read_text()
            if '"variable"' not in text or not text.endswith("}"):
                continue
            index = json.loads(text)["chunkIndex"]
            sizes = read_chunk_sizes(index["transformedChunks"])
            content = zstandard.decompress(base64.b64decode(index["transformedChunks"]))
            widths.add(content[8] if len(sizes) > 1 else 0)
            read = read_variable_chunk_index(
                index["transformedChunks"],
                original_chunk_bytes=index["originalChunkSize"],
                original_bytes=index["originalFileSize"],
            )
            assert read.stored_bytes == path.with_suffix(".log").stat().st_size == sizes.sum()
    assert widths == {0, 1, 2}


@given(st.integers(1, 50), st.integers(0, 500), st.integers(0, 600), st.integers(0, 600))
def test_chunks_of_a_range_contain_its_bytes(chunk: int, size: int, start: int, length: int) -> None:
    last = size - (-(-size // chunk) - 1) * chunk
    index = FixedChunkIndex(
        original_chunk_bytes=chunk,
        original_bytes=size,
        stored_chunk_bytes=chunk + 28,
        last_stored_chunk_bytes=last + 28,
    )
    index.require_sizes(is_compressed=False, overhead_bytes=28)
    wanted = {at // chunk for at in range(start, min(start + length, size))}
    assert set(index.chunks_between(start, start + length)) == wanted
    assert index.original_start(index.chunk_count) == size
    stored = [index.stored_start(at + 1) - index.stored_start(at) for at in range(index.chunk_count)]
    assert stored == [len(range(size)[at : at + chunk]) + 28 for at in range(0, size, chunk)]
    assert index.stored_bytes == sum(stored)


def test_index_of_two_gibibytes_in_chunks_of_a_byte_needs_no_memory() -> None:
    index = FixedChunkIndex(
        original_chunk_bytes=1, original_bytes=INT32_MAX, stored_chunk_bytes=1, last_stored_chunk_bytes=1
    )
    assert index.chunks_between(INT32_MAX - 2, INT32_MAX + 5) == range(INT32_MAX - 2, INT32_MAX)
    assert index.stored_bytes == INT32_MAX


BENT = {
    "not base64": "###",
    "no zstd": base64.b64encode(b"nothing of the kind").decode(),
    "empty": packed(b""),
    "a negative count": packed(struct.pack(">i", -1)),
    "a huge count": packed(struct.pack(">iib", INT32_MAX, 1, 1)),
    "a negative size": packed(struct.pack(">ii", 1, -5)),
    "a width of none": packed(struct.pack(">iibi", 2, 1, 0, 1)),
    "a width of five": packed(struct.pack(">iib", 2, 1, 5) + bytes(9)),
    "bytes after the list": packed(pack_sizes([1, 2, 3]) + b"x"),
    "bytes after a list of one": packed(pack_sizes([1]) + b"x"),
    "missing bytes": packed(pack_sizes([1, 2, 3])[:-1]),
    "beyond int32": packed(struct.pack(">iib", 2, INT32_MAX, 4) + b"\xff" * 4 + struct.pack(">i", 1)),
    "a bomb": packed(bytes(MAX_SIZES_BYTES + 1)),
    "a cut frame": base64.b64encode(zstandard.ZstdCompressor().compress(pack_sizes([1, 2, 3]))[:-2]).decode(),
}


@pytest.mark.parametrize("text", BENT.values(), ids=BENT.keys())
def test_damaged_list_of_chunks_is_refused(text: str) -> None:
    with pytest.raises(ArchiveError) as refused:
        read_chunk_sizes(text)
    assert refused.value.reason is Reason.MANIFEST_INVALID


def test_list_of_chunks_that_does_not_match_the_log_is_refused() -> None:
    with pytest.raises(ArchiveError, match="the list of chunks does not match the log's size"):
        read_variable_chunk_index(packed(pack_sizes([5, 5])), original_chunk_bytes=10, original_bytes=21)
    index = read_variable_chunk_index(packed(pack_sizes([40, 28])), original_chunk_bytes=10, original_bytes=11)
    with pytest.raises(ArchiveError, match="transformed chunk 1 has an impossible size"):
        index.require_sizes(is_compressed=True, overhead_bytes=28)
    index = read_variable_chunk_index(packed(pack_sizes([500, 30])), original_chunk_bytes=10, original_bytes=11)
    with pytest.raises(ArchiveError, match="transformed chunk 0 has an impossible size"):
        index.require_sizes(is_compressed=True, overhead_bytes=0)


def test_incompressible_chunk_may_be_larger_than_its_original() -> None:
    noise = struct.pack("<625Q", *(pow(3, n, 2**64 - 59) for n in range(1, 626)))
    stored = len(zstandard.ZstdCompressor().compress(noise))
    assert stored > len(noise)
    index = read_variable_chunk_index(
        packed(pack_sizes([stored])), original_chunk_bytes=len(noise), original_bytes=len(noise)
    )
    index.require_sizes(is_compressed=True, overhead_bytes=0)


@pytest.mark.parametrize(
    ("original", "most"), [(1, 64), (129_024, 129_529), (131_072, 131_584), (4_194_304, 4_210_688)]
)
def test_compressed_chunk_has_at_least_a_byte_and_at_most_what_zstd_allows(original: int, most: int) -> None:
    """The largest sizes are those that ZSTD_compressBound gives."""
    for last in (1, most):
        index = read_variable_chunk_index(
            packed(pack_sizes([5_000_000, last])), original_chunk_bytes=5_000_000, original_bytes=5_000_000 + original
        )
        index.require_sizes(is_compressed=True, overhead_bytes=0)
    index = read_variable_chunk_index(
        packed(pack_sizes([5_000_000, most + 1])), original_chunk_bytes=5_000_000, original_bytes=5_000_000 + original
    )
    with pytest.raises(ArchiveError, match="transformed chunk 1 has an impossible size"):
        index.require_sizes(is_compressed=True, overhead_bytes=0)


def test_an_empty_log_has_no_chunks_and_an_empty_object() -> None:
    fixed = FixedChunkIndex(original_chunk_bytes=10, original_bytes=0, stored_chunk_bytes=38, last_stored_chunk_bytes=0)
    variable = read_variable_chunk_index(packed(pack_sizes([])), original_chunk_bytes=10, original_bytes=0)
    fixed.require_sizes(is_compressed=False, overhead_bytes=28)
    variable.require_sizes(is_compressed=True, overhead_bytes=28)
    assert (fixed.stored_bytes, variable.stored_bytes) == (0, 0)
