"""changed_logs: what if a log is not what it was when it was indexed?

It was cut, or replaced by another one. Who reads batches by the tables says so in the same words.
"""

from __future__ import annotations

from coldlog.errors import ArchiveError, Reason


def shorter_log(position: int, expected: str, found: str) -> ArchiveError:
    """Bytes lack of which the tables tell."""
    message = "log is shorter than when it was indexed"
    return ArchiveError(Reason.LOG_TRUNCATED, message, position=position, expected=expected, found=found)


def replaced_batch(position: int, expected: str, found: str) -> ArchiveError:
    """Another batch lies where the tables tell of one."""
    message = "batch is not the one that was indexed, the log was replaced; run the pipeline again"
    return ArchiveError(Reason.HEADER_INVALID, message, position=position, expected=expected, found=found)
