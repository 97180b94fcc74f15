"""Define the table of segments that could not be used, with the reason.

One row per segment whose bytes are not valid in their format. The segment stays out of every index until its objects
change or a run tries quarantined segments again. The row is removed when the segment has been indexed.
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
        Column(name="message", type="STRING", required=True, comment="What is wrong, in words"),
        Column(name="object_name", type="STRING", required=True, comment="Object of the archive with the bad bytes"),
        Column(name="position", type="BIGINT", required=True, comment="Byte position in the object; -1: none"),
        Column(name="expected", type="STRING", required=True, comment="What the format requires there"),
        Column(name="found", type="STRING", required=True, comment="What was found there"),
        Column(name="first_seen_ms", type="BIGINT", required=True, comment="When it was first found bad"),
        Column(name="last_seen_ms", type="BIGINT", required=True, comment="When it was last found bad"),
        Column(name="attempt_count", type="BIGINT", required=True, comment="How often it was tried"),
    ),
)
