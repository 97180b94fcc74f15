"""validation_results: what did each validation find of each expectation, and up to where was each table validated?

One row a run, table and expectation. The newest run of a table also says what was validated: the versions of all tables
that were read, and up to which build their rows. A table that had not changed has no row in a run.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

VALIDATION_RESULTS = TableDefinition(
    name="validation_results",
    comment="Results of expectations, by run of validate_tables",
    key=("run_id", "table_name", "expectation_id"),
    clustered_by=("table_name", "validated_ms"),
    skipping_columns=("run_id", "table_name", "expectation_id", "validated_ms", "severity"),
    columns=(
        Column(name="run_id", type="STRING", required=True, comment="Id of the validation"),
        Column(name="table_name", type="STRING", required=True, comment="The table"),
        Column(name="expectation_id", type="STRING", required=True, comment="The expectation, as its suite names it"),
        Column(name="validated_ms", type="BIGINT", required=True, comment="When the validation began"),
        Column(name="severity", type="STRING", required=True, comment="critical: fails the job; warning: is shown"),
        Column(name="success", type="BOOLEAN", required=True, comment="Everything is as expected"),
        Column(name="description", type="STRING", required=True, comment="What is expected, for people"),
        Column(name="view_name", type="STRING", required=True, comment="Query of conf/expectations/sql that was asked"),
        Column(name="row_count", type="BIGINT", required=True, comment="Rows of the table that were looked at"),
        Column(name="element_count", type="BIGINT", required=True, comment="Rows of the view"),
        Column(name="unexpected_count", type="BIGINT", comment="Rows of the view not as expected; NULL: see problem"),
        Column(name="sample", type="STRING", comment="Some of them, as JSON: where, and what was found; NULL: none"),
        Column(name="problem", type="STRING", comment="Why it could not be evaluated; NULL: it was"),
        Column(name="table_version", type="BIGINT", required=True, comment="Version of the table that was validated"),
        Column(name="read_versions", type="STRING", required=True, comment="Versions of all tables read, as JSON"),
        Column(
            name="after_build_number",
            type="BIGINT",
            required=True,
            comment="Rows of index tables of later builds alone were looked at; -1: all",
        ),
        Column(name="build_number", type="BIGINT", required=True, comment="The last build that was looked at"),
        Column(name="suite_digest", type="STRING", required=True, comment="Changes with the suite and its queries"),
    ),
)
