"""What Redpanda's time queries answered."""

from __future__ import annotations

from builders.payload_codecs import Codec
from peer_quirks.model import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    LOCAL_REQUIRED,
    MAX_TIMESTAMP,
    NONE,
    UNKNOWN,
    Log,
    Question,
    Quirk,
    batch,
    commit,
    empty_segment,
    segment,
    transactional,
)

LOCAL_LOG_IS_EMPTY = Quirk(
    name="redpanda-28642",
    source="https://github.com/redpanda-data/redpanda/pull/28642",
    happened=(
        "The local log was truncated up to the high watermark, and its active segment stayed. A time within that "
        "segment got no offset, although the archive had the record."
    ),
    answered="The offset in the archive. A time later than all records gets no offset and no error.",
    reason=(
        "The archive is searched first, whatever the local log holds. Records below the log start are never an "
        "answer, even where the active segment still has their bytes."
    ),
    logs=(
        Log(
            segments=(segment(batch(0, 100, 200, 300, 400, 500)), segment(batch(5, 600, 700, 800)), empty_segment(8)),
            archived_count=2,
            local_from=2,
            questions=(
                Question(0, (0, 100, 0)),
                Question(650, (6, 700, 0)),
                Question(800, (7, 800, 0)),
                Question(801, LOCAL_REQUIRED),
                Question(LATEST, LOCAL_REQUIRED, (8, None, 0)),
                Question(EARLIEST_LOCAL, LOCAL_REQUIRED, (8, None, 0)),
                Question(LATEST_TIERED, (7, None, 0)),
                Question(EARLIEST_PENDING_UPLOAD, (8, None, 0), NONE),
                Question(MAX_TIMESTAMP, (7, 800, 0)),
            ),
        ),
        Log(
            segments=(segment(batch(0, 100, 200)), segment(batch(2, 300, 400))),
            archived_count=1,
            local_from=1,
            log_start_offset=4,
            questions=(
                Question(0, LOCAL_REQUIRED),
                Question(350, LOCAL_REQUIRED),
                Question(EARLIEST, (4, None, 0)),
                Question(LATEST, LOCAL_REQUIRED, (4, None, 0)),
            ),
        ),
    ),
)

RETENTION_BEFORE_DELETION = Quirk(
    name="redpanda-18097",
    source="https://github.com/redpanda-data/redpanda/pull/18097",
    happened=(
        "Retention or DeleteRecords had moved the log start, and the objects below it were not deleted yet. The "
        "search began in such an object, so the answer was an offset below the log start, or none."
    ),
    answered="The first record at or after the log start, also where the log start is inside a compressed batch.",
    reason=(
        "coldlog ignores records below the log start, also if their objects still exist: stairs and running maxima "
        "begin at the log start."
    ),
    logs=(
        Log(
            segments=(
                segment(batch(0, *range(1000, 1100, 10))),
                segment(batch(10, *range(1100, 1200, 10), codec=Codec.ZSTD)),
                segment(batch(20, *range(1200, 1250, 10))),
                segment(batch(25, 1300)),
            ),
            archived_count=3,
            local_from=3,
            log_start_offset=15,
            questions=(
                Question(0, (15, 1150, 0)),
                Question(1050, (15, 1150, 0)),
                Question(1101, (15, 1150, 0)),
                Question(1151, (16, 1160, 0)),
                Question(1200, (20, 1200, 0)),
                Question(1241, LOCAL_REQUIRED, (25, 1300, 0)),
                Question(EARLIEST, (15, None, 0)),
            ),
        ),
        Log(
            segments=(
                segment(batch(0, 1000, 5000)),
                segment(batch(2, 1020, 1030)),
                segment(batch(4, 1040, 1050)),
            ),
            archived_count=2,
            local_from=2,
            log_start_offset=4,
            questions=(
                Question(0, LOCAL_REQUIRED, (4, 1040, 0)),
                Question(1045, LOCAL_REQUIRED, (5, 1050, 0)),
                Question(2000, LOCAL_REQUIRED),
            ),
        ),
    ),
)

LOCAL_START_IN_A_SEGMENT = Quirk(
    name="redpanda-9815",
    source="https://github.com/redpanda-data/redpanda/pull/9815",
    happened=(
        "The local log began inside its first segment. A time at its first record, or earlier in that segment, was "
        "answered from the local log with an offset that was too high: the archive had a lower one."
    ),
    answered=(
        "The lowest offset of archive and local log together. If nothing is archived and the log start is inside a "
        "segment, the search begins at the log start."
    ),
    reason=(
        "Records with equal timestamps may be in two segments. The archive is searched first; the local log is "
        "searched only after the end of the archive."
    ),
    logs=(
        Log(
            segments=(
                segment(batch(0, 100, 200, 300, 500, 500)),
                segment(batch(5, 500, 500, 600)),
                segment(batch(8, 600, 700)),
            ),
            archived_count=2,
            local_from=1,
            questions=(
                Question(500, (3, 500, 0)),
                Question(301, (3, 500, 0)),
                Question(501, (7, 600, 0)),
                Question(600, (7, 600, 0)),
                Question(601, LOCAL_REQUIRED, (9, 700, 0)),
                Question(EARLIEST_LOCAL, LOCAL_REQUIRED, (5, None, 0)),
            ),
        ),
        Log(
            segments=(segment(batch(5, 500, 600, 700)), segment(batch(8, 800))),
            archived_count=0,
            local_from=0,
            log_start_offset=7,
            questions=(
                Question(500, UNKNOWN, (7, 700, 0)),
                Question(650, UNKNOWN, (7, 700, 0)),
                Question(701, UNKNOWN, (8, 800, 0)),
                Question(801, UNKNOWN, NONE),
            ),
        ),
    ),
)

INSIDE_A_BATCH = Quirk(
    name="redpanda-6606",
    source="https://github.com/redpanda-data/redpanda/pull/6606",
    happened=(
        "A batch was skipped if its first record was earlier than the time. Or the answer was the first offset of the"
        " batch, not that of the record. A recent time could get offset 0."
    ),
    answered="The first record in the batch at or after the time. A time later than all records gets no offset.",
    reason=(
        "Clients choose timestamps, so they are in any order within a batch. Each record that raises the largest "
        "timestamp of its segment is a row of the index; at batch depth the batch is read. As in Kafka, control "
        "records count."
    ),
    logs=(
        Log(
            segments=(
                segment(batch(0, 100, 200, 300, 400), batch(4, 250, 500, 350)),
                segment(transactional(7, 360), commit(8, 900)),
                segment(batch(9, 10)),
            ),
            archived_count=2,
            local_from=2,
            questions=(
                Question(100, (0, 100, 0)),
                Question(101, (1, 200, 0)),
                Question(350, (3, 400, 0)),
                Question(401, (5, 500, 0)),
                Question(501, (8, 900, 0)),
                Question(901, LOCAL_REQUIRED),
            ),
        ),
    ),
)

COMPRESSED_BATCH = Quirk(
    name="redpanda-25769",
    source="https://github.com/redpanda-data/redpanda/issues/25769",
    happened="For a compressed batch the answer was always the first offset of the batch.",
    answered="The offset of the record, for every codec.",
    reason="coldlog decodes compressed batches: in the build or, at batch depth, in the lookup.",
    logs=tuple(
        Log(
            segments=(segment(batch(0, *range(1, 51), codec=codec)), segment(batch(50, *range(51, 61), codec=codec))),
            archived_count=1,
            local_from=1,
            questions=(
                Question(0, (0, 1, 0)),
                Question(1, (0, 1, 0)),
                Question(2, (1, 2, 0)),
                Question(25, (24, 25, 0)),
                Question(50, (49, 50, 0)),
                Question(51, LOCAL_REQUIRED, (50, 51, 0)),
                Question(58, LOCAL_REQUIRED, (57, 58, 0)),
                Question(MAX_TIMESTAMP, (49, 50, 0), (59, 60, 0)),
            ),
        )
        for codec in Codec
    ),
)
