"""Define the table of damage that readers found in logs, for the next build.

One row per segment and build of its index. The next build reads these segments completely, and removes the rows. The
table exists from the first report on. It is written without Spark, by compare and set (`small_table`). Jobs with Spark
neither create nor maintain it.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

DAMAGE_REPORTS = TableDefinition(
    name="damage_reports",
    comment="Damage that readers found in logs, until the next build has read these logs",
    key=("topic", "partition", "start_offset", "segment_id", "build_number"),
    clustered_by=("topic", "partition", "start_offset"),
    skipping_columns=("topic", "partition", "start_offset"),
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="start_offset", type="BIGINT", required=True, comment="Base offset of the segment"),
        Column(name="segment_id", type="STRING", required=True, comment="The segment"),
        Column(name="build_number", type="BIGINT", required=True, comment="Build that the reader used"),
        Column(name="reason", type="STRING", required=True, comment="Reason code"),
        Column(name="message", type="STRING", required=True, comment="What is wrong, in words"),
        Column(name="object_name", type="STRING", required=True, comment="Object of the archive with the bad bytes"),
        Column(name="position", type="BIGINT", required=True, comment="Byte position in the object; -1: none"),
        Column(name="expected", type="STRING", required=True, comment="What should be there"),
        Column(name="found", type="STRING", required=True, comment="What was found there"),
        Column(name="reported_ms", type="BIGINT", required=True, comment="When it was reported first"),
    ),
)
