"""Report a log that was truncated or replaced after it was indexed.

Every reader that takes positions of batches from the tables raises these errors.
"""

from __future__ import annotations

from coldlog.errors import ArchiveError, Reason


def shorter_log(position: int, expected: str, found: str) -> ArchiveError:
    """The error for a log that ends before bytes that the tables refer to."""
    message = "log is shorter than when it was indexed"
    return ArchiveError(Reason.LOG_TRUNCATED, message, position=position, expected=expected, found=found)


def replaced_batch(position: int, expected: str, found: str) -> ArchiveError:
    """The error for a position at which the log has another batch than the tables."""
    message = "log was replaced after it was indexed: the batch differs; run the pipeline again"
    return ArchiveError(Reason.HEADER_INVALID, message, position=position, expected=expected, found=found)
