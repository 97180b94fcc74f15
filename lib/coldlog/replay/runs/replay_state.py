"""Save how far a replay has come, and which run must be repeated.

A replay with a name continues where it ended. A run is planned before anything is written, and ended after that, each
by one change of the table `replay_positions`. A plan says exactly which offsets are replayed and how they are numbered.
So a run that was killed is repeated from its plan and gives the same rows, whatever was archived since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coldlog.errors import RetriableError, UsageError
from coldlog.tables.definitions.replay_positions import REPLAY_POSITIONS
from coldlog.tables.delta.small_table import Row, SmallTable

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The next offset, the end of the planned run, and the largest timestamp before it (None: no record yet)."""

    topic_id: str
    from_offset: int
    until_offset: int
    reached_ms: int | None
    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """The number of the next record, and the largest timestamp replayed (None: no record yet)."""

    next_sequence: int = 0
    latest_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayState:
    """The state of one replay. `is_planned`: the run is in progress, or was killed. All runs share `rules`."""

    replay_id: str
    run: int
    is_planned: bool
    sink: str
    rules: str
    partitions: Mapping[TopicPartition, PartitionState]
    tasks: Mapping[int, TaskState]


@dataclass(frozen=True, slots=True)
class ReplayStates:
    """The replays of one warehouse."""

    table: SmallTable

    @staticmethod
    def of_warehouse(uri: str) -> ReplayStates:
        return ReplayStates(SmallTable(uri=uri, table=REPLAY_POSITIONS))

    def read(self, name: str) -> ReplayState | None:
        """Return the state of the replay with this name; None if there is none."""
        return _state([row for row in self.table.read() if row["replay"] == name])

    def change(self, name: str, before: ReplayState | None, after: ReplayState) -> None:
        """Change the state from `before` to `after`. Raise `RetriableError` if another run has changed it meanwhile."""

        def change(rows: list[Row]) -> list[Row]:
            if _state([row for row in rows if row["replay"] == name]) != before:
                raise RetriableError(
                    f"another job has changed replay {name} meanwhile; run again when that job has ended"
                )
            return [row for row in rows if row["replay"] != name] + _rows(name, after)

        self.table.change(change)


def require_same(name: str, state: ReplayState, sink: str, rules: str) -> None:
    """Check that a replay continues with the sink and the rules with which it began."""
    if state.sink != sink:
        raise UsageError(f"replay {name} writes to {state.sink}, not to {sink}; use another name for another output")
    if state.rules != rules:
        raise UsageError(
            f"replay {name} began with {state.rules}, and cannot continue with {rules}; use another name and another "
            "output"
        )


def _state(rows: list[Row]) -> ReplayState | None:
    if not rows:
        return None
    partitions = {
        (str(row["topic"]), _number(row, "partition")): PartitionState(
            topic_id=str(row["topic_id"]),
            from_offset=_number(row, "from_offset"),
            until_offset=_number(row, "until_offset"),
            reached_ms=_known_number(row, "reached_ms"),
            task=_number(row, "task"),
        )
        for row in rows
    }
    tasks = {
        _number(row, "task"): TaskState(
            next_sequence=_number(row, "task_next_sequence"), latest_ms=_known_number(row, "task_latest_ms")
        )
        for row in rows
    }
    return ReplayState(
        replay_id=str(rows[0]["replay_id"]),
        rules=str(rows[0]["rules"]),
        run=_number(rows[0], "run"),
        is_planned=bool(rows[0]["is_planned"]),
        sink=str(rows[0]["sink"]),
        partitions=partitions,
        tasks=tasks,
    )


def _rows(name: str, state: ReplayState) -> list[Row]:
    return [
        {
            "replay": name,
            "topic": topic,
            "partition": partition,
            "topic_id": partition_state.topic_id,
            "replay_id": state.replay_id,
            "sink": state.sink,
            "rules": state.rules,
            "run": state.run,
            "is_planned": state.is_planned,
            "from_offset": partition_state.from_offset,
            "until_offset": partition_state.until_offset,
            "reached_ms": partition_state.reached_ms,
            "task": partition_state.task,
            "task_next_sequence": state.tasks[partition_state.task].next_sequence,
            "task_latest_ms": state.tasks[partition_state.task].latest_ms,
        }
        for (topic, partition), partition_state in state.partitions.items()
    ]


def _number(row: Row, name: str) -> int:
    value = row[name]
    assert isinstance(value, int)
    return value


def _known_number(row: Row, name: str) -> int | None:
    return None if row[name] is None else _number(row, name)
