"""quarantine: which segments could not be used, and why?

One row a segment whose bytes are not what their format promises. It stays out of every index until its objects change
or a run asks for quarantined segments again; the row goes when it was indexed after all.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

QUARANTINE = TableDefinition(
    name="quarantine",
    comment="Segments that could not be used, with the place and the reason",
    key=("topic", "partition", "start_offset", "segment_id"),
    clustered_by=("topic", "partition", "start_offset"),
    skipping_columns=("topic", "partition", "start_offset"),
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id"),
        Column(name="start_offset", type="BIGINT", required=True, comment="Base offset of the segment"),
        Column(name="segment_id", type="STRING", required=True, comment="The segment"),
        Column(name="reason", type="STRING", required=True, comment="Reason code"),
        Column(name="message", type="STRING", required=True, comment="What is wrong, for people"),
        Column(name="object_name", type="STRING", required=True, comment="Object of the archive with the bad bytes"),
        Column(name="position", type="BIGINT", required=True, comment="Byte position in it; -1: none applies"),
        Column(name="expected", type="STRING", required=True, comment="What the format promises there"),
        Column(name="found", type="STRING", required=True, comment="What is there"),
        Column(name="first_seen_ms", type="BIGINT", required=True, comment="When it was first found bad"),
        Column(name="last_seen_ms", type="BIGINT", required=True, comment="When it was last found bad"),
        Column(name="attempt_count", type="BIGINT", required=True, comment="How often it was tried"),
    ),
)
