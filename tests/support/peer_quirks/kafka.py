"""What Kafka's brokers answer to MAX_TIMESTAMP."""

from __future__ import annotations

from builders.payload_codecs import Codec
from peer_quirks.model import (
    LOCAL_REQUIRED,
    MAX_TIMESTAMP,
    NONE,
    UNKNOWN,
    Log,
    Question,
    Quirk,
    appended,
    batch,
    segment,
)

OFFSET_OF_LARGEST = Quirk(
    name="KAFKA-16310",
    source="https://github.com/apache/kafka/pull/15621",
    happened=(
        "The answer to MAX_TIMESTAMP was the last offset of the batch that has the largest timestamp, because "
        "followers and recovery store only that offset. The leader epoch of the answer was the newest of the log."
    ),
    answered=(
        "The first record that has the largest timestamp, and the leader epoch of its batch. With LogAppendTime that "
        "is the first record of the batch."
    ),
    reason=(
        "Offsets are taken from the records. A segment's time index only says where the search in a log directory "
        "begins."
    ),
    logs=(
        *(
            Log(
                segments=(
                    segment(batch(0, 100, 999, 200, codec=codec)),
                    segment(batch(3, 300, epoch=4)),
                    segment(batch(4, 400, epoch=6)),
                ),
                archived_count=archived_count,
                local_from=0,
                questions=(Question(MAX_TIMESTAMP, (1, 999, 0) if archived_count else UNKNOWN, (1, 999, 0)),),
            )
            for codec in (Codec.NONE, Codec.GZIP)
            for archived_count in (2, 0)
        ),
        Log(
            segments=(segment(batch(0, 100), batch(1, 999), batch(2, 200), batch(3, 999)), segment(batch(4, 5))),
            archived_count=1,
            local_from=0,
            questions=(Question(MAX_TIMESTAMP, (1, 999, 0)),),
        ),
        Log(
            segments=(segment(appended(0, 7000, 3), appended(3, 8000, 3)), segment(appended(6, 8000, 1))),
            archived_count=1,
            local_from=1,
            questions=(Question(MAX_TIMESTAMP, (3, 8000, 0)), Question(7001, (3, 8000, 0)), Question(1, (0, 7000, 0))),
        ),
    ),
)

LARGEST_IS_ARCHIVED = Quirk(
    name="KAFKA-17552",
    source="https://github.com/apache/kafka/pull/17248",
    happened=(
        "For a tiered topic a broker answers MAX_TIMESTAMP from its local segments alone. If the largest timestamp is"
        " archived, the answer is a smaller one. The fix was not merged when this was written."
    ),
    answered=(
        "The largest timestamp of archive and log directory together, and the lowest offset that has it; with "
        "`lookup.broker_compatible` too."
    ),
    reason=(
        "KIP-734 defines it for the whole partition. A broker's answer changes when a segment leaves its disk, and "
        "the archive does not know when that was."
    ),
    logs=(
        *(
            Log(
                segments=(
                    segment(batch(0, 100, 200, 900, 300)),
                    segment(batch(4, 400, 900, 500)),
                    segment(batch(7, 600, largest_local_ms, 550)),
                ),
                archived_count=2,
                local_from=2,
                questions=(
                    Question(MAX_TIMESTAMP, (2, 900, 0), (8, 950, 0) if largest_local_ms == 950 else (2, 900, 0)),
                    Question(650, (2, 900, 0)),
                    Question(901, LOCAL_REQUIRED, (8, 950, 0) if largest_local_ms == 950 else NONE),
                ),
            )
            for largest_local_ms in (700, 900, 950)
        ),
    ),
)
