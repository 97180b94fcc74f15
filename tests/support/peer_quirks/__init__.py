"""peer_quirks: logs that other implementations of ListOffsets answered wrongly, and what coldlog answers of them."""

from __future__ import annotations

from peer_quirks.franz_go import EVERY_PATH, FIRST_SEGMENT_ONLY, LARGEST_IS_DELETED, RECORDS_OF_A_BATCH
from peer_quirks.kafka import LARGEST_IS_ARCHIVED, OFFSET_OF_LARGEST
from peer_quirks.redpanda import (
    COMPRESSED_BATCH,
    INSIDE_A_BATCH,
    LOCAL_LOG_IS_EMPTY,
    LOCAL_START_IN_A_SEGMENT,
    RETENTION_BEFORE_DELETION,
)

QUIRKS = (
    LOCAL_LOG_IS_EMPTY,
    RETENTION_BEFORE_DELETION,
    LOCAL_START_IN_A_SEGMENT,
    INSIDE_A_BATCH,
    COMPRESSED_BATCH,
    OFFSET_OF_LARGEST,
    LARGEST_IS_ARCHIVED,
    RECORDS_OF_A_BATCH,
    FIRST_SEGMENT_ONLY,
    LARGEST_IS_DELETED,
    EVERY_PATH,
)
"""In the order of docs/explanation/quirks.md."""
