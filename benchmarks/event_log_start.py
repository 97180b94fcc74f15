"""event_log_start: how large is a tier's log of events, and how long does a job take to read it when it starts?

    PYTHONPATH=lib python benchmarks/event_log_start.py [SEGMENTS]

Writes the four events of each of SEGMENTS (by default 100,000) segments of a hundred partitions, each in a batch of its
own as the jobs do but without synchronizing, and reads them as a job does. Prints bytes, and seconds of the processor.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from coldlog.formats.kafka.remote_log.remote_log_events import Event, SegmentMetadataEvent, SegmentUpdateEvent
from coldlog.formats.limits import DecodeLimits
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.copying.copy_segments import random_uuid
from coldlog.tiering.event_logs import KnownEventLog, directory_event_log

PARTITIONS = 100
LIMITS = DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26)
NOW_MS = 1_700_000_000_000


def main(arguments: list[str]) -> int:
    segments = int(arguments[0]) if arguments else 100_000
    with tempfile.TemporaryDirectory() as directory, mock.patch("os.fdatasync"):
        with directory_event_log(directory, topic="__remote_log_metadata", partition_count=50, limits=LIMITS) as log:
            for event in iter_events(segments):
                log.append(event)
        sizes = [path.stat().st_size for path in Path(directory).glob("*/*.log")]
        with directory_event_log(directory, topic="__remote_log_metadata", partition_count=50, limits=LIMITS) as log:
            began = time.process_time()
            known = KnownEventLog(log)
            took_s = time.process_time() - began
        counted = sum(len(known.segments_of(each)) for each in known.partitions())
        print(f"{counted:,} segments: {sum(sizes):,} bytes of events, read in {took_s:.1f} s")
    return 0


def iter_events(segments: int) -> Iterator[Event]:
    """As copy_segments and expire_segments announce them."""
    topic_id = random_uuid()
    for number in range(segments):
        partition = TopicIdPartition(topic="payments.orders", partition=number % PARTITIONS, topic_id=topic_id)
        segment_id = RemoteLogSegmentId(topic_id_partition=partition, segment_id=random_uuid())
        started, *later = RemoteLogSegmentState
        yield SegmentMetadataEvent(
            remote_log_segment_id=segment_id,
            start_offset=number * 1_000_000,
            end_offset=number * 1_000_000 + 999_999,
            broker_id=101,
            max_timestamp_ms=NOW_MS + number,
            event_timestamp_ms=NOW_MS + number,
            segment_leader_epochs=((7, number * 1_000_000),),
            size_bytes=1 << 30,
            custom_metadata=None,
            state=started,
            txn_index_empty=True,
        )
        for state in later:
            yield SegmentUpdateEvent(
                remote_log_segment_id=segment_id,
                broker_id=101,
                event_timestamp_ms=NOW_MS + number,
                custom_metadata=None,
                state=state,
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
