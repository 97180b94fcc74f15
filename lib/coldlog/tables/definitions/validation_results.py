"""Define the table of validation results: what each validation found, and how far each table was validated.

One row per run, table and expectation. The newest run of a table also records what was validated: the versions of all
tables that were read, and the builds of their rows. A table that had not changed has no row in a run.
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
        Column(name="expectation_id", type="STRING", required=True, comment="Id of the expectation in its suite"),
        Column(name="validated_ms", type="BIGINT", required=True, comment="When the validation began"),
        Column(
            name="severity",
            type="STRING",
            required=True,
            comment="critical: a failure fails the job; warning: it is shown",
        ),
        Column(name="success", type="BOOLEAN", required=True, comment="True: all rows are as expected"),
        Column(name="description", type="STRING", required=True, comment="What is expected, in words"),
        Column(name="view_name", type="STRING", required=True, comment="Query in conf/expectations/sql that was run"),
        Column(name="row_count", type="BIGINT", required=True, comment="Rows of the table that were checked"),
        Column(name="element_count", type="BIGINT", required=True, comment="Rows of the view"),
        Column(name="unexpected_count", type="BIGINT", comment="Rows of the view not as expected; NULL: see problem"),
        Column(name="sample", type="STRING", comment="Some unexpected rows as JSON: where, and the value; NULL: none"),
        Column(name="problem", type="STRING", comment="Why the expectation could not be evaluated; NULL: it was"),
        Column(name="table_version", type="BIGINT", required=True, comment="Version of the table that was validated"),
        Column(name="read_versions", type="STRING", required=True, comment="Versions of all tables read, as JSON"),
        Column(
            name="after_build_number",
            type="BIGINT",
            required=True,
            comment="In index tables, only rows of builds after this one were checked; -1: all rows",
        ),
        Column(name="build_number", type="BIGINT", required=True, comment="The last build that was checked"),
        Column(name="suite_digest", type="STRING", required=True, comment="Hash of the suite and its queries"),
    ),
)
