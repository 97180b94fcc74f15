"""Define the table of what the last run found in each partition directory of the archive.

A run compares it with a new listing, and works on the partitions that differ. A directory whose segments follow the
metadata topic is listed only when it is due (`listed_ms`). The table is written without Spark, by
compare and set (`small_table`), at the end of a run of run_pipeline that succeeds. Jobs with Spark neither create nor
maintain it.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

DIRECTORY_DIGESTS = TableDefinition(
    name="directory_digests",
    comment="What the last run of run_pipeline found in each partition directory",
    key=("name",),
    clustered_by=("name",),
    skipping_columns=("name",),
    columns=(
        Column(name="name", type="STRING", required=True, comment="Directory, below the archive"),
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id; empty if the layout has none"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="segments", type="BIGINT", required=True, comment="Number of segments"),
        Column(name="log_bytes", type="BIGINT", required=True, comment="Bytes of their logs, as listed"),
        Column(name="incomplete", type="BIGINT", required=True, comment="Segments with missing files"),
        Column(name="unrecognized", type="BIGINT", required=True, comment="Objects that are no part of a segment"),
        Column(
            name="digest",
            type="STRING",
            required=True,
            comment="Sum of the digests of its names, sizes and modification times",
        ),
        Column(
            name="listed_ms",
            type="BIGINT",
            comment="When it was listed last; NULL: every run lists it, because not only events can change it",
        ),
        Column(
            name="seen_ms",
            type="BIGINT",
            comment="As of when this is known: the time of the listing, or of the S3 Inventory report; NULL: not known",
        ),
    ),
)
