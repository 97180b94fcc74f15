"""Test that the state of a replay is read as it was saved, and is not changed for a run that is late or differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coldlog.errors import RetriableError, UsageError
from coldlog.replay.runs.replay_state import PartitionState, ReplayState, ReplayStates, TaskState, require_same

FIRST = PartitionState(topic_id="A" * 22, from_offset=3, until_offset=9, reached_ms=None, task=0)
STATE = ReplayState(
    replay_id="id",
    run=1,
    is_planned=True,
    sink="a table",
    rules="order all",
    partitions={("orders", 0): FIRST},
    tasks={0: TaskState()},
)
ENDED = replace(
    STATE,
    run=2,
    is_planned=False,
    partitions={("orders", 0): replace(FIRST, from_offset=9, reached_ms=70), ("orders", 1): replace(FIRST, task=1)},
    tasks={0: TaskState(next_sequence=6, latest_ms=70), 1: TaskState()},
)


def test_state_is_read_as_it_was_saved_beside_those_of_other_replays(warehouse: Path) -> None:
    states = ReplayStates.of_warehouse(str(warehouse))
    assert states.read("nightly") is None
    states.change("nightly", None, STATE)
    states.change("other", None, replace(STATE, replay_id="other id"))
    assert states.read("nightly") == STATE
    states.change("nightly", STATE, ENDED)
    assert states.read("nightly") == ENDED
    assert states.read("other") == replace(STATE, replay_id="other id")


def test_run_does_not_change_a_state_that_another_run_has_changed(warehouse: Path) -> None:
    states = ReplayStates.of_warehouse(str(warehouse))
    states.change("nightly", None, ENDED)
    for before in (None, STATE):
        with pytest.raises(RetriableError, match="another job has changed replay nightly"):
            states.change("nightly", before, STATE)
    assert states.read("nightly") == ENDED


def test_replay_continues_only_with_its_sink_and_its_rules() -> None:
    require_same("nightly", STATE, "a table", "order all")
    with pytest.raises(UsageError, match="replay nightly writes to a table, not to a folder"):
        require_same("nightly", STATE, "a folder", "order all")
    with pytest.raises(UsageError, match="began with order all, and cannot continue with order tasks"):
        require_same("nightly", STATE, "a table", "order tasks")
