"""discrepancies: the table of disagreements between the announced events, the listing and the bytes of a segment.

One row a segment and kind of discrepancy, as things stood when `reconcile_archive` last ran; what was mended has no
row. What each kind means for an operator, how grave it is and what to do about it, is said here and nowhere else.
"""

from __future__ import annotations

from enum import StrEnum

from coldlog.tables.definitions.definition import Column, TableDefinition


class Severity(StrEnum):
    """How grave a discrepancy is, worst first.

    error: records that should be readable are not, or may be wrong; warning: waste, or something to look at; info:
    nothing to do now.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    def is_as_grave_as(self, other: Severity) -> bool:
        """It is the other one, or worse."""
        order = list(Severity)
        return order.index(self) <= order.index(other)


class DiscrepancyKind(StrEnum):
    """What does not agree; the `kind` column of `discrepancies`."""

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
        "run again, in case its deletion was announced meanwhile; if it stays, restore its objects",
    )
    FILES_MISSING = "files_missing", Severity.ERROR, "restore the missing files"
    SIZE_DIFFERS = "size_differs", Severity.ERROR, "restore the log: it was cut or replaced since it was copied"
    START_OFFSET_DIFFERS = "start_offset_differs", Severity.ERROR, "give the objects back their names"
    END_OFFSET_DIFFERS = (
        "end_offset_differs",
        Severity.ERROR,
        "compare the log with a replica: it holds records behind the end that was announced",
    )
    MAX_TIMESTAMP_DIFFERS = (
        "max_timestamp_differs",
        Severity.ERROR,
        "do not trust a broker's lookups by time here: it chooses segments by the announced timestamp",
    )
    LEADER_EPOCHS_DIFFER = (
        "leader_epochs_differ",
        Severity.ERROR,
        "compare the log with a replica: it holds records of a leader that was not announced",
    )
    TXN_INDEX_DENIED = (
        "txn_index_denied",
        Severity.ERROR,
        "do not read it as committed through a broker, which will not fetch this transaction index",
    )
    TXN_INDEX_IN_DOUBT = (
        "txn_index_in_doubt",
        Severity.WARNING,
        "look whether the transactions of its abort markers wrote anything; if so, restore the transaction index",
    )
    TXN_INDEX_PROMISED = (
        "txn_index_promised",
        Severity.INFO,
        "nothing to do: readers of committed records ask for an index that lists nothing",
    )
    OUTSIDE_LINEAGE = (
        "outside_lineage",
        Severity.WARNING,
        "look for an unclean leader election: a leader that was deposed uploaded what the log no longer holds",
    )
    ANNOUNCEMENT_LOST = (
        "announcement_lost",
        Severity.WARNING,
        "nothing for its records, which are served as they are; a broker forgets it at its next start: let the "
        "metadata topic keep events for longer than any tiered topic keeps records (retention.ms=-1)",
    )
    ORPHAN = "orphan", Severity.WARNING, "remove its objects once it is certain that no event of it was lost"
    COPY_UNFINISHED = (
        "copy_unfinished",
        Severity.WARNING,
        "remove its objects, if it has any: its broker failed and did not come back to it",
    )
    COPY_INCOMPLETE = (
        "copy_incomplete",
        Severity.WARNING,
        "read the metadata topic, which tells whether the copy was ever finished",
    )
    COPY_UNDERWAY = "copy_underway", Severity.INFO, "wait for the next run: it may be under way"
    DELETION_UNFINISHED = (
        "deletion_unfinished",
        Severity.WARNING,
        "look why the broker does not finish it; what is left of its objects may be removed",
    )
    DELETION_UNDERWAY = "deletion_underway", Severity.INFO, "wait for the next run: it may be under way"
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
        Column(name="kind", type="STRING", required=True, comment="What does not agree"),
        Column(
            name="severity",
            type="STRING",
            required=True,
            comment="error: unreadable or maybe wrong; warning: waste, or to be looked at; info: nothing to do now",
        ),
        Column(name="expected", type="STRING", required=True, comment="What should be, mostly as it was announced"),
        Column(name="found", type="STRING", required=True, comment="What is there"),
        Column(name="advice", type="STRING", required=True, comment="What to do about it"),
        Column(name="first_seen_ms", type="BIGINT", required=True, comment="When a reconciliation first found it"),
    ),
)
