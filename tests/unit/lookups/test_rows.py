"""Test how rows of requests become questions, and answers become rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from coldlog.lookups.index_rows import NOTHING
from coldlog.lookups.questions import EXACT, LOCAL_ONLY, METADATA, NOT_EXACT, REMOTE_THEN_LOCAL, Answers
from coldlog.lookups.requests.rows import (
    LIST_OFFSETS_SCHEMA,
    REQUEST_SCHEMA,
    answers_table,
    questions_of,
    requests_from_rows,
)
from coldlog.model.list_offsets import ErrorCode
from coldlog.model.states import IsolationLevel


@pytest.mark.parametrize(
    ("schema", "nullable"),
    [
        (REQUEST_SCHEMA, {"isolation_level", "request_id"}),
        (
            LIST_OFFSETS_SCHEMA,
            {"offset", "offset_timestamp_ms", "leader_epoch", "route", "local_start_offset", "request_id"}
            | {"is_exact", "passed_over_from_offset", "passed_over_to_offset"},
        ),
    ],
)
def test_columns_that_always_have_a_value_are_declared_so(schema: pa.Schema, nullable: set[str]) -> None:
    assert {field.name for field in schema if field.nullable} == nullable


def test_isolation_level_counts_from_version_2_on_and_an_unknown_one_is_invalid() -> None:
    levels = [(None, 11), ("read_committed", 11), ("read_committed", 2), ("read_committed", 1), ("other", 11)]
    requests = requests_from_rows([("orders", 0, 5, 3, level, -1, version) for level, version in levels])
    for setting, of_setting in ((IsolationLevel.READ_UNCOMMITTED, False), (IsolationLevel.READ_COMMITTED, True)):
        asked = questions_of(requests, np.zeros(5, dtype=np.bool_), setting, 700).questions
        assert asked.is_committed.tolist() == [of_setting, True, True, False, False]
        assert asked.is_invalid.tolist() == [False, False, False, False, True]
        assert asked.leader_epochs.tolist() == [3] * 5


def test_timeout_counts_from_version_10_on_if_it_is_positive() -> None:
    timeouts = [(-1, 11), (0, 11), (1, 11), (250, 10), (250, 9)]
    requests = requests_from_rows([("orders", 0, 5, -1, None, timeout, version) for timeout, version in timeouts])
    timed = questions_of(requests, np.zeros(5, dtype=np.bool_), IsolationLevel.READ_UNCOMMITTED, 700)
    assert timed.timeouts_s.tolist() == [0.7, 0.7, 0.001, 0.25, 0.7]


def test_missing_values_of_an_answer_are_null() -> None:
    requests = requests_from_rows([("orders", 0, 5), ("orders", 1, 6), ("orders", 2, -1)])
    answers = Answers(
        errors=np.array([ErrorCode.NONE, ErrorCode.OPEN_TRANSACTION, ErrorCode.NONE]),
        offsets=np.array([0, -1, 1]),
        timestamps_ms=np.array([-1, NOTHING, 7]),
        leader_epochs=np.array([1, -1, 0]),
        routes=np.array([REMOTE_THEN_LOCAL, METADATA, LOCAL_ONLY]),
        local_starts=np.array([0, -1, 1]),
        exactness=np.array([EXACT, -1, NOT_EXACT]),
        passed_from=np.array([-1, -1, 4]),
        passed_to=np.array([-1, -1, 9]),
    )
    table = answers_table(requests, answers)
    assert table.schema == LIST_OFFSETS_SCHEMA
    copied = ("topic", "partition", "timestamp_ms", "version", "request_id")
    found = [name for name in LIST_OFFSETS_SCHEMA.names if name not in copied]
    assert [tuple(row[name] for name in found) for row in table.to_pylist()] == [
        (0, "NONE", 0, -1, 1, "remote_then_local", 0, True, None, None),
        (10_002, "OPEN_TRANSACTION", None, None, None, "metadata", None, None, None, None),
        (0, "NONE", 1, 7, 0, "local_only", 1, False, 4, 9),
    ]
    assert table["partition"].to_pylist() == [0, 1, 2]
