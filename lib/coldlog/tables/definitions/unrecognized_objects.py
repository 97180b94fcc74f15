"""unrecognized_objects: what lies in the archive that is no segment?

One row an object or directory whose name the layout cannot read. Nothing is dropped in silence: what coldlog does not
understand is listed here.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

UNRECOGNIZED_OBJECTS = TableDefinition(
    name="unrecognized_objects",
    comment="Objects and directories of the archive that are no part of a segment",
    key=("name",),
    clustered_by=("name",),
    skipping_columns=("name",),
    columns=(
        Column(name="name", type="STRING", required=True, comment="Object or directory"),
        Column(name="size_bytes", type="BIGINT", required=True, comment="Its size; 0 for a directory"),
        Column(name="why", type="STRING", required=True, comment="What the layout could not read"),
    ),
)
