"""Define the table of disagreements between the announced events, the listing and the bytes of a segment.

One row per segment and kind of discrepancy, as of the last run of `reconcile_archive`. Resolved discrepancies have no
row. Only this module says how grave each kind is and what an operator should do about it.
"""

from __future__ import annotations

from enum import StrEnum

from coldlog.tables.definitions.definition import Column, TableDefinition


class Severity(StrEnum):
    """How grave a discrepancy is, worst first.

    error: records that should be readable are not, or may be wrong; warning: wasted space, or something to check; info:
    nothing to do now.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    def is_as_grave_as(self, other: Severity) -> bool:
        """Whether it is the same as the other one, or worse."""
        order = list(Severity)
        return order.index(self) <= order.index(other)


class DiscrepancyKind(StrEnum):
    """What disagrees; the `kind` column of `discrepancies`."""

    severity: Severity
    advice: str

    def __new__(cls, kind: str, severity: Severity, advice: str) -> DiscrepancyKind:
        member = str.__new__(cls, kind)
        member._value_ = kind
        member.severity = severity
        member.advice = advice
        return member

    SEGMENT_MISSING = (
        "segment_missing",
        Severity.ERROR,
        "run reconcile_archive again: its deletion may be announced by then; if not, restore its objects",
    )
    FILES_MISSING = "files_missing", Severity.ERROR, "restore the missing files"
    SIZE_DIFFERS = "size_differs", Severity.ERROR, "restore the log: it was cut or replaced after it was copied"
    START_OFFSET_DIFFERS = "start_offset_differs", Severity.ERROR, "rename the objects back to their original names"
    END_OFFSET_DIFFERS = (
        "end_offset_differs",
        Severity.ERROR,
        "compare the log with a replica: it holds records after the announced end",
    )
    MAX_TIMESTAMP_DIFFERS = (
        "max_timestamp_differs",
        Severity.ERROR,
        "do not trust a broker's lookups by time here: a broker chooses segments by the announced timestamp",
    )
    LEADER_EPOCHS_DIFFER = (
        "leader_epochs_differ",
        Severity.ERROR,
        "compare the log with a replica: it holds records of a leader that was not announced",
    )
    TXN_INDEX_DENIED = (
        "txn_index_denied",
        Severity.ERROR,
        "do not read this segment with read_committed from a broker: it does not fetch this transaction index",
    )
    TXN_INDEX_IN_DOUBT = (
        "txn_index_in_doubt",
        Severity.WARNING,
        "check if the transactions of its abort markers wrote records; if so, restore the transaction index",
    )
    TXN_INDEX_PROMISED = (
        "txn_index_promised",
        Severity.INFO,
        "nothing to do: readers of committed records fetch an index that is empty",
    )
    LOG_DAMAGED = (
        "log_damaged",
        Severity.ERROR,
        "restore the log, then run with build.retry_quarantined=true; until then only its sound batches are served",
    )
    SIDE_FILE_DAMAGED = (
        "side_file_damaged",
        Severity.WARNING,
        "restore the file before a broker reads it, then run with build.retry_quarantined=true; "
        "until then the log is used instead of the file",
    )
    OUTSIDE_LINEAGE = (
        "outside_lineage",
        Severity.WARNING,
        "look for an unclean leader election: a former leader uploaded records that the log no longer holds",
    )
    ANNOUNCEMENT_LOST = (
        "announcement_lost",
        Severity.WARNING,
        "its records are served, but a broker forgets the segment when it restarts: let the metadata topic keep events "
        "for longer than any tiered topic keeps records (retention.ms=-1)",
    )
    ORPHAN = "orphan", Severity.WARNING, "remove its objects when you are certain that no event of it was lost"
    COPY_UNFINISHED = (
        "copy_unfinished",
        Severity.WARNING,
        "remove its objects, if it has any: its broker failed and did not finish the copy",
    )
    COPY_INCOMPLETE = (
        "copy_incomplete",
        Severity.WARNING,
        "restore the missing files, or read the metadata topic (metadata.uri): it shows if the copy was ever finished, "
        "and a whole log is then served without its offset or time index",
    )
    COPY_UNDERWAY = "copy_underway", Severity.INFO, "wait for the next run: the copy may be in progress"
    DELETION_UNFINISHED = (
        "deletion_unfinished",
        Severity.WARNING,
        "find out why the broker does not finish the deletion; the remaining objects may be removed",
    )
    DELETION_UNDERWAY = "deletion_underway", Severity.INFO, "wait for the next run: the deletion may be in progress"
    DELETED_BUT_LISTED = "deleted_but_listed", Severity.WARNING, "remove its objects: its deletion was finished"


DISCREPANCIES = TableDefinition(
    name="discrepancies",
    comment="Segments whose events, listed objects and bytes do not agree, as of the last reconciliation",
    key=("topic", "partition", "start_offset", "segment_id", "kind"),
    clustered_by=("topic", "partition", "start_offset"),
    skipping_columns=("topic", "partition", "start_offset", "kind", "severity"),
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id"),
        Column(name="start_offset", type="BIGINT", required=True, comment="Base offset of the segment"),
        Column(name="segment_id", type="STRING", required=True, comment="The segment"),
        Column(name="kind", type="STRING", required=True, comment="What disagrees"),
        Column(
            name="severity",
            type="STRING",
            required=True,
            comment="error: unreadable or maybe wrong; warning: wasted space, or to check; info: nothing to do now",
        ),
        Column(name="expected", type="STRING", required=True, comment="The expected value, usually as announced"),
        Column(name="found", type="STRING", required=True, comment="The value that was found"),
        Column(name="advice", type="STRING", required=True, comment="What to do about it"),
        Column(name="first_seen_ms", type="BIGINT", required=True, comment="When reconcile_archive first found it"),
    ),
)
