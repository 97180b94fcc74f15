"""Define the table of replay positions: how far each replay has come in each partition, and its current plan.

One row per replay and partition. All rows of a replay change in one commit. The table is written without Spark, by
compare and set (`small_table`). Jobs with Spark neither create nor maintain it.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

REPLAY_POSITIONS = TableDefinition(
    name="replay_positions",
    comment="How far each replay has come in each partition",
    key=("replay", "topic", "partition"),
    clustered_by=("replay", "topic", "partition"),
    skipping_columns=("replay", "topic", "partition"),
    columns=(
        Column(name="replay", type="STRING", required=True, comment="Name of the replay"),
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id"),
        Column(name="replay_id", type="STRING", required=True, comment="Created with the first plan; sinks store it"),
        Column(name="sink", type="STRING", required=True, comment="Where the replay writes"),
        Column(name="rules", type="STRING", required=True, comment="Order, isolation level, negative timestamps"),
        Column(name="run", type="BIGINT", required=True, comment="Number of the last run, from 1"),
        Column(
            name="is_planned",
            type="BOOLEAN",
            required=True,
            comment="True: the run is in progress, or was killed and the next run repeats it",
        ),
        Column(name="from_offset", type="BIGINT", required=True, comment="The next offset to replay"),
        Column(
            name="until_offset",
            type="BIGINT",
            required=True,
            comment="End of the planned run, exclusive; equal to from_offset if no run is planned",
        ),
        Column(name="reached_ms", type="BIGINT", comment="Greatest timestamp before from_offset; NULL: no record yet"),
        Column(name="task", type="INT", required=True, comment="Group of partitions that share one order"),
        Column(name="task_next_sequence", type="BIGINT", required=True, comment="Number of the task's next record"),
        Column(
            name="task_latest_ms",
            type="BIGINT",
            comment="Greatest timestamp that the task has replayed; earlier records are late; NULL: no record yet",
        ),
    ),
)
