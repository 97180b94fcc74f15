"""damage_program: which damage of a batch does this process tell?

    python damage_program.py >refusals

Writes a line of JSON for each byte of `LOG`, changed, at each depth and in windows of two sizes: what is
told, or null. `CRC32C_SW_MODE=force` makes the package crc32c compute in Python's reach alone, as on a processor
without the instruction: there is then no C function that the compiled loop could call.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, build_segment
from coldlog.errors import ArchiveError
from coldlog.formats.kafka.crc import ADDRESS
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.index.segment_index import SegmentIndexer
from coldlog.model.states import IndexDepth

LIMITS = DecodeLimits(max_batch_bytes=1 << 16, max_decompressed_bytes=1 << 16)
_WINDOWS = (100, 1 << 20)
BATCHES = [
    Batch(base_offset=0, records=(Record(timestamp_ms=5, value=b"v" * 9),), leader_epoch=1),
    Batch(
        base_offset=1, records=tuple(Record(timestamp_ms=6 + at) for at in range(3)), codec=Codec.ZSTD, leader_epoch=1
    ),
    Batch(base_offset=4, records=(Record(timestamp_ms=4, key=b"k"),), leader_epoch=2),
]
LOG = build_segment(BATCHES)
Told = list[object] | None


def is_native() -> bool:
    """Checksums are computed inside the compiled loop."""
    return ADDRESS != 0


def list_refusals(log: bytes) -> list[Told]:
    """Of the log itself, then of each change."""
    return [
        _find_refusal(content, depth, window_bytes)
        for content in (log, *_changes(log))
        for depth in IndexDepth
        for window_bytes in _WINDOWS
    ]


def _changes(log: bytes) -> Iterator[bytes]:
    for at in range(len(log)):
        yield log[:at] + bytes([log[at] ^ 0x11]) + log[at + 1 :]


def _find_refusal(log: bytes, depth: IndexDepth, window_bytes: int) -> Told:
    indexer = SegmentIndexer(start_offset=0, depth=depth, counted_from_offset=0, sections=SectionReader(limits=LIMITS))
    position, needed = 0, 0
    try:
        while position < len(log):
            window = memoryview(log)[position : position + max(window_bytes, needed)]
            chunk = indexer.add_window(window, position, is_last=position + len(window) == len(log))
            position, needed = position + chunk.consumed_bytes, chunk.needed_bytes
        indexer.finish()
    except ArchiveError as refused:
        return [refused.reason.value, refused.message, refused.position, refused.expected, refused.found]
    return None


if __name__ == "__main__":
    refusals = list_refusals(LOG)
    json.dump({"is_native": is_native(), "refusals": refusals}, sys.stdout)
