"""sizes: how much data is each benchmark run on?"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.shared.generated_logs import MIB, LogShape, RecordKind
from benchmarks.shared.generated_tables import TablesShape

from builders.payload_codecs import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much data: `mix`, `clicks` and `large` hold every codec, `large` for batch depth, `stairs` and `tables` for
    lookups, `record_count` records of each codec for the data source, `replayed_count` about so many in one order,
    `small_segment_count` segments of a few hundred bytes, `served_bytes` in a tier that clients read, one segment of
    `one_segment_bytes`, rows of `scale_segment_count` segments without an archive, `hourly_runs` runs one after
    another."""

    mix: LogShape
    clicks: LogShape
    large: LogShape
    stairs: LogShape
    tables: TablesShape
    record_count: int
    replayed_count: int
    small_segment_count: int
    served_bytes: int
    one_segment_bytes: int
    scale_segment_count: int
    hourly_runs: int
    turns: int


def full_sizes(large_gb: float) -> Sizes:
    """About 1 GB a codec, `large_gb` for the job at batch depth and for that at record depth, ten million stairs."""
    large_bytes = round(large_gb * 1_000_000_000)
    return Sizes(
        mix=LogShape(log_bytes=3_000 * MIB),
        clicks=LogShape(log_bytes=large_bytes, records=RecordKind.CLICKS),
        large=LogShape(log_bytes=large_bytes),
        stairs=stairs_shape(10_000_000),
        tables=TablesShape(partition_count=10_000, segments=10, batches=10, stairs=10),
        record_count=10_000_000,
        replayed_count=50_000_000,
        small_segment_count=100_000,
        served_bytes=2_000 * MIB,
        one_segment_bytes=1_024 * MIB,
        scale_segment_count=1_000_000,
        hourly_runs=1_000,
        turns=5,
    )


def quick_sizes() -> Sizes:
    """Enough to see that everything runs, and roughly how fast."""
    return Sizes(
        mix=LogShape(log_bytes=192 * MIB, segment_bytes=32 * MIB, template_bytes=8 * MIB),
        clicks=LogShape(log_bytes=192 * MIB, segment_bytes=32 * MIB, template_bytes=8 * MIB, records=RecordKind.CLICKS),
        large=LogShape(log_bytes=384 * MIB, segment_bytes=32 * MIB, template_bytes=8 * MIB),
        stairs=stairs_shape(500_000),
        tables=TablesShape(partition_count=500, segments=10, batches=10, stairs=10),
        record_count=1_500_000,
        replayed_count=2_000_000,
        small_segment_count=1_000,
        served_bytes=256 * MIB,
        one_segment_bytes=96 * MIB,
        scale_segment_count=20_000,
        hourly_runs=48,
        turns=3,
    )


def stairs_shape(stair_count: int) -> LogShape:
    """An archive of about so many records of nine or ten bytes, each later than the one before."""
    log_bytes = stair_count * 97 // 10
    return LogShape(
        log_bytes=log_bytes,
        codecs=(Codec.NONE,),
        segment_bytes=4 * MIB,
        template_bytes=MIB,
        partition_count=4,
        records=RecordKind.STAIRS,
    )
