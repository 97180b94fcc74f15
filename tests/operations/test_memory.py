"""A segment of a gibibyte is indexed in the memory of a window, at both depths and with the worst of codecs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders.archive_writer import TopicPartition, write_archive
from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, Segment, build_batch

GIB = 1 << 30
ROOT = Path(__file__).parents[2]

_WORKER = """
import resource, sys
from coldlog.archive.open_archive import open_archive
from coldlog.formats.limits import DecodeLimits
from coldlog.model.states import IndexDepth
from coldlog.operations.build_plan import SegmentWork
from coldlog.operations.encoded_rows import read_payloads
from coldlog.settings import IndexSettings
from coldlog.operations.segment_build import OUTCOME_SCHEMA, BuildOptions, build_segments

def index(archive, depth):
    layout = open_archive(archive, "local_tiered_storage")
    listing = layout.list_segments(layout.list_partition_directories().directories[0])
    work = [SegmentWork(segment=each, log_modified_ms=0, count_from_offset=0, replaces_build_numbers=())
            for each in listing.segments]
    limits = DecodeLimits(max_batch_bytes=128 << 20, max_decompressed_bytes=128 << 20)
    options = BuildOptions(depth=depth, limits=limits, window_bytes=IndexSettings().window_bytes)
    pieces = 0
    for piece in build_segments(layout, work, options):
        pieces += 1
    outcome = read_payloads(OUTCOME_SCHEMA, piece.column("payload").to_pylist()).to_pylist()[0]
    return pieces, outcome["outcome"], outcome["record_count"]

small, large, allowance = sys.argv[1], sys.argv[2], int(sys.argv[3])
for depth in IndexDepth:
    index(small, depth)  # compiles and imports what it needs
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + allowance, used + allowance))
for depth in IndexDepth:
    print(*index(large, depth))
"""


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_gibibyte_is_indexed_within_192_mib(tmp_path: Path, codec: Codec) -> None:
    records = tuple(Record(timestamp_ms=1_000 + i, value=os.urandom(900)) for i in range(64))
    batch = Batch(base_offset=0, records=records, codec=codec)
    once = build_batch(batch)
    topic = TopicPartition(topic="large", partition=0)
    small, large = tmp_path / "small", tmp_path / "large"
    write_archive(small, {topic: [Segment(batches=(batch,))]})
    [written] = write_archive(large, {topic: [Segment(batches=(batch,), index_interval_bytes=1 << 30)]})
    count = GIB // len(once) + 1
    with written.log.open("wb") as log:
        for number in range(count):
            # The base offset is outside the checksum.
            log.write((64 * number).to_bytes(8, "big") + once[8:])
    assert written.log.stat().st_size >= GIB
    environment = os.environ | {"PYTHONPATH": str(ROOT / "lib")}
    done = subprocess.run(
        [sys.executable, "-c", _WORKER, str(small), str(large), str(192 << 20)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [(outcome, int(records)) for _, outcome, records in lines] == [("indexed", 64 * count)] * 2
    written.log.unlink()
