"""Define the table of objects in the archive that are not part of a segment.

One row per object or directory whose name the layout cannot read. coldlog ignores nothing silently: everything that it
does not understand is listed here.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

UNRECOGNIZED_OBJECTS = TableDefinition(
    name="unrecognized_objects",
    comment="Objects and directories of the archive that are not part of a segment",
    key=("name",),
    clustered_by=("name",),
    skipping_columns=("name",),
    columns=(
        Column(name="name", type="STRING", required=True, comment="Object or directory"),
        Column(name="size_bytes", type="BIGINT", required=True, comment="Its size; 0 for a directory"),
        Column(name="why", type="STRING", required=True, comment="Why the layout could not read it"),
    ),
)
