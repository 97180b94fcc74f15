"""Define the errors that coldlog raises.

Two sides: `ArchiveError` (the archived bytes are wrong) and `UsageError` (the caller is wrong). `RetriableError` marks
a failure that a later attempt may not have. Facts are fields; the message ends with what to do.
"""

from __future__ import annotations

from enum import StrEnum


class ColdlogError(Exception):
    """The base class of all errors that coldlog raises deliberately."""

    @property
    def text_with_notes(self) -> str:
        """The text, followed by the notes that were added to the error."""
        return "; ".join([str(self), *getattr(self, "__notes__", ())])


class RetriableError(ColdlogError):
    """The same call may succeed later: a store that is down, throttled or slow."""


class AnsweredTooLateError(RetriableError):
    """This cannot be done within the time that was given: a broker answered that, or the read quota is used up."""


class UsageError(ColdlogError):
    """The caller must change something: settings, arguments, requests, missing tables."""


class NotAuthorizedError(UsageError):
    """A broker does not authorize this client for one topic; other topics may work."""


class NotSupportedError(UsageError):
    """A broker is too old for this request; other requests may work."""


class Reason(StrEnum):
    """Why bytes of the archive could not be used; the `reason` column of the quarantine table."""

    BATCH_LENGTH_INVALID = "batch_length_invalid"
    CRC_MISMATCH = "crc_mismatch"
    UNSUPPORTED_MAGIC = "unsupported_magic"
    UNSUPPORTED_CODEC = "unsupported_codec"
    OFFSETS_NOT_ASCENDING = "offsets_not_ascending"
    HEADER_INVALID = "header_invalid"
    LOG_TRUNCATED = "log_truncated"
    LOG_EMPTY = "log_empty"
    LOG_SIZE_DIFFERS = "log_size_differs"
    OFFSETS_NOT_ANNOUNCED = "offsets_not_announced"
    RECORDS_INVALID = "records_invalid"
    DECOMPRESSION_FAILED = "decompression_failed"
    DECOMPRESSION_LIMIT = "decompression_limit"
    CONTROL_RECORD_INVALID = "control_record_invalid"
    OFFSET_INDEX_INVALID = "offset_index_invalid"
    TIME_INDEX_INVALID = "time_index_invalid"
    TXN_INDEX_INVALID = "txn_index_invalid"
    PRODUCER_SNAPSHOT_INVALID = "producer_snapshot_invalid"
    LEADER_EPOCH_CHECKPOINT_INVALID = "leader_epoch_checkpoint_invalid"
    LEADER_EPOCH_UNKNOWN = "leader_epoch_unknown"
    OFFSET_CHECKPOINT_INVALID = "offset_checkpoint_invalid"
    METADATA_EVENT_INVALID = "metadata_event_invalid"
    MANIFEST_INVALID = "manifest_invalid"
    INDEXES_SIZE_DIFFERS = "indexes_size_differs"
    DECRYPTION_FAILED = "decryption_failed"
    DECRYPTION_KEY_MISSING = "decryption_key_missing"
    OBJECT_MISSING = "object_missing"
    OBJECT_UNREADABLE = "object_unreadable"


class ArchiveError(ColdlogError):
    """The bytes of the archive do not have the expected format.

    `object_name` is the archive object (empty while a pure parser does not know it), `position` a byte position in that
    object (-1 if there is none), `expected` and `found` are short texts for people.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        object_name: str = "",
        position: int = -1,
        expected: str = "",
        found: str = "",
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.object_name = object_name
        self.position = position
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[object, ...]:
        return (
            _rebuild_archive_error,
            (self.reason, self.message, self.object_name, self.position, self.expected, self.found),
        )

    def __str__(self) -> str:
        where = f" in {self.object_name}" if self.object_name else ""
        at = f" at byte {self.position}" if self.position >= 0 else ""
        texts = (("expected", self.expected), ("found", self.found))
        facts = ", ".join(f"{name} {text}" for name, text in texts if text)
        return f"{self.message}{where}{at}{facts and ': '}{facts}"

    def with_object_name(self, object_name: str) -> ArchiveError:
        """The same error with the name of the object that was read."""
        return self.replaced(object_name=object_name)

    def replaced(
        self, *, message: str | None = None, object_name: str | None = None, position: int | None = None
    ) -> ArchiveError:
        """The same error with another message, object or position."""
        return ArchiveError(
            self.reason,
            self.message if message is None else message,
            object_name=self.object_name if object_name is None else object_name,
            position=self.position if position is None else position,
            expected=self.expected,
            found=self.found,
        )

    @property
    def facts(self) -> dict[str, object]:
        """The fields as columns of a row."""
        return {
            "reason": self.reason.value,
            "message": self.message,
            "object_name": self.object_name,
            "position": self.position,
            "expected": self.expected,
            "found": self.found,
        }


def _rebuild_archive_error(
    reason: Reason, message: str, object_name: str, position: int, expected: str, found: str
) -> ArchiveError:
    return ArchiveError(reason, message, object_name=object_name, position=position, expected=expected, found=found)
