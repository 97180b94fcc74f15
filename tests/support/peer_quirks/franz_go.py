"""What kfake, the broker in the tests of franz-go, answered."""

from __future__ import annotations

from coldlog.model.list_offsets import ErrorCode
from peer_quirks.model import (
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    INVALID,
    LATEST,
    LATEST_TIERED,
    LOCAL_REQUIRED,
    MAX_TIMESTAMP,
    NONE,
    READ_COMMITTED,
    UNKNOWN,
    UNSUPPORTED,
    Log,
    Question,
    Quirk,
    abort,
    batch,
    commit,
    segment,
    transactional,
)

RECORDS_OF_A_BATCH = Quirk(
    name="franz-go-1431",
    source="https://github.com/twmb/franz-go/pull/1431",
    happened=(
        "The answer was the last record at or before the time, and the last of several with the same time. The batch "
        "was found by a binary search over largest timestamps, which need not ascend."
    ),
    answered="The first record at or after the time. As in Kafka, control records and aborted ones count.",
    reason=(
        "The search is over the running maximum of the timestamp, which never falls. The record at which it reaches "
        "the time is the answer."
    ),
    logs=(
        Log(
            segments=(segment(batch(0, 10_000, 10_010, 10_010, 10_020)), segment(batch(4, 9_000))),
            archived_count=1,
            local_from=1,
            questions=(
                Question(10_000, (0, 10_000, 0)),
                Question(10_005, (1, 10_010, 0)),
                Question(10_010, (1, 10_010, 0)),
                Question(10_011, (3, 10_020, 0)),
                Question(10_021, LOCAL_REQUIRED),
            ),
        ),
        *(
            Log(
                segments=(segment(*(batch(at, ms) for at, ms in enumerate((100, 50, 80, 120)))), segment(batch(4, 1))),
                archived_count=archived_count,
                local_from=0,
                log_start_offset=log_start_offset,
                questions=tuple(
                    Question(timestamp_ms, found if archived_count else UNKNOWN, found)
                    for timestamp_ms, found in (
                        (45, (1, 50, 0) if log_start_offset else (0, 100, 0)),
                        (60, (2, 80, 0) if log_start_offset else (0, 100, 0)),
                        (75, (2, 80, 0) if log_start_offset else (0, 100, 0)),
                        (101, (3, 120, 0)),
                    )
                ),
            )
            for archived_count in (1, 0)
            for log_start_offset in (0, 1)
        ),
        Log(
            segments=(segment(transactional(0, 300), abort(1, 310), batch(2, 200)), segment(batch(3, 250))),
            archived_count=1,
            local_from=1,
            questions=(
                Question(250, (0, 300, 0)),
                Question(250, (0, 300, 0), isolation_level=READ_COMMITTED),
                Question(301, (1, 310, 0)),
                Question(311, LOCAL_REQUIRED),
            ),
        ),
    ),
)

FIRST_SEGMENT_ONLY = Quirk(
    name="franz-go-1432",
    source="https://github.com/twmb/franz-go/pull/1432",
    happened=(
        "A broker searches only the first segment whose largest timestamp reaches the time. If the records that reach"
        " it are below the log start, the local log has no answer, and a search of the tier continues in the local "
        "log. kfake answered a record of a later segment."
    ),
    answered=(
        "The record of the later segment. With `lookup.broker_compatible` the broker's answer: coldlog then searches "
        "archive and log directory as a broker does."
    ),
    reason="A consumer asks for the first record at or after the time, in whatever segment it is.",
    logs=(
        *(
            Log(
                segments=(
                    segment(batch(0, 10_000, 10_010, 10_010, 10_020)),
                    segment(batch(4, 10_060, 10_050)),
                    segment(batch(6, 10_058)),
                    segment(batch(7, 10_070)),
                ),
                archived_count=3,
                local_from=local_from,
                log_start_offset=5,
                questions=(
                    Question(10_050, (5, 10_050, 0)),
                    Question(10_055, (6, 10_058, 0), (6, 10_058, 0), LOCAL_REQUIRED, at_10_055),
                    Question(10_059, LOCAL_REQUIRED, (7, 10_070, 0), LOCAL_REQUIRED, at_10_059),
                ),
            )
            for local_from, at_10_055, at_10_059 in (
                (3, (7, 10_070, 0), (7, 10_070, 0)),
                (2, (6, 10_058, 0), (7, 10_070, 0)),
                (1, NONE, NONE),
            )
        ),
        Log(
            segments=(segment(batch(0, 10_060, 10_050)), segment(batch(2, 10_058))),
            archived_count=0,
            local_from=0,
            log_start_offset=1,
            questions=(
                Question(10_050, UNKNOWN, (1, 10_050, 0)),
                Question(10_055, UNKNOWN, (2, 10_058, 0), directory_as_broker=NONE),
            ),
        ),
    ),
)

LARGEST_IS_DELETED = Quirk(
    name="franz-go-1433",
    source="https://github.com/twmb/franz-go/pull/1433",
    happened=(
        "A broker answers MAX_TIMESTAMP with a record below the log start while the segment is still on its disk. "
        "kfake answered the largest of the other records."
    ),
    answered=(
        "From the archive: the largest at or after the log start. From a log directory: the broker's answer, which "
        "includes records below the log start."
    ),
    reason=(
        "Consumers cannot read archived records below the log start, although these may stay in the archive for a "
        "long time. For records that are not archived, coldlog answers as the broker does."
    ),
    logs=(
        Log(
            segments=(segment(batch(0, 900, 300, 400)), segment(batch(3, 500, 450)), segment(batch(5, 100))),
            archived_count=2,
            local_from=2,
            log_start_offset=1,
            questions=(Question(MAX_TIMESTAMP, (3, 500, 0)), Question(501, LOCAL_REQUIRED)),
        ),
        Log(
            segments=(segment(batch(0, 900, 300, 400)), segment(batch(3, 500, 450)), segment(batch(5, 100))),
            archived_count=0,
            local_from=0,
            log_start_offset=1,
            questions=(Question(MAX_TIMESTAMP, UNKNOWN, (0, 900, 0)), Question(501, UNKNOWN, NONE)),
        ),
    ),
)

EVERY_PATH = Quirk(
    name="franz-go-1434",
    source="https://github.com/twmb/franz-go/pull/1434",
    happened=(
        "kfake did not make the checks that a broker makes before it looks up the topic. It returned a leader epoch "
        "without an offset, and records that a consumer cannot read yet."
    ),
    answered=(
        "The broker's errors, checked in the broker's order, and no leader epoch without an offset. Records at or "
        "after the high watermark are never an answer; for `read_committed`, records at or after the last stable "
        "offset. Without a local log, coldlog answers OPEN_TRANSACTION there."
    ),
    reason=(
        "Programs that are written for a broker work with coldlog. If the archive cannot know the answer, the error "
        "code says so."
    ),
    logs=(
        Log(
            segments=(
                segment(batch(0, 100), transactional(1, 200), batch(2, 300)),
                segment(commit(3, 400), batch(4, 500), batch(5, 600)),
            ),
            archived_count=1,
            local_from=1,
            high_watermark=5,
            questions=(
                Question(50, (0, 100, 0), isolation_level=READ_COMMITTED),
                Question(150, (1, 200, 0)),
                Question(150, ErrorCode.OPEN_TRANSACTION, (1, 200, 0), isolation_level=READ_COMMITTED),
                Question(450, LOCAL_REQUIRED, (4, 500, 0)),
                Question(501, LOCAL_REQUIRED, NONE),
                Question(LATEST, LOCAL_REQUIRED, (5, None, 0)),
                Question(50, (0, 100, None), version=3),
                Question(-7, UNSUPPORTED),
                Question(MAX_TIMESTAMP, UNSUPPORTED, version=6),
                Question(EARLIEST_LOCAL, UNSUPPORTED, version=7),
                Question(LATEST_TIERED, UNSUPPORTED, version=8),
                Question(EARLIEST_PENDING_UPLOAD, UNSUPPORTED, version=10),
                Question(50, INVALID, request_id="twice"),
                Question(MAX_TIMESTAMP, INVALID, request_id="twice"),
            ),
        ),
        Log(
            segments=(segment(batch(0, 100), transactional(1, 200), batch(2, 300)), segment(batch(3, 250))),
            archived_count=0,
            local_from=0,
            questions=(
                Question(150, UNKNOWN, (1, 200, 0)),
                Question(150, UNKNOWN, NONE, isolation_level=READ_COMMITTED),
                Question(MAX_TIMESTAMP, UNKNOWN, (2, 300, 0)),
                Question(MAX_TIMESTAMP, UNKNOWN, NONE, isolation_level=READ_COMMITTED),
                Question(LATEST, UNKNOWN, (1, None, 0), isolation_level=READ_COMMITTED),
                Question(LATEST, UNKNOWN, (4, None, 0)),
            ),
        ),
        Log(
            segments=(),
            archived_count=0,
            questions=(
                Question(50, UNKNOWN),
                Question(-7, UNSUPPORTED),
                Question(MAX_TIMESTAMP, UNSUPPORTED, version=6),
                Question(50, INVALID, request_id="both"),
                Question(60, INVALID, request_id="both"),
            ),
        ),
    ),
)
