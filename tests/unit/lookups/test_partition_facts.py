"""Test where a partition begins, and whose leader wrote an offset, as far as its archive knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coldlog.lookups.partition_facts import PartitionFacts

FACTS = PartitionFacts(
    topic_id="A" * 22,
    log_start_offset=None,
    earliest_offset=None,
    latest_tiered_offset=None,
    max_timestamp_ms=None,
    max_timestamp_offset=None,
    stable_offset=None,
    lineage=(),
)


@pytest.mark.parametrize(
    ("log_start", "earliest", "tiered", "first", "local_start"),
    [(None, None, None, 0, 0), (None, 7, 9, 7, 10), (8, 7, 9, 8, 10), (0, 7, 9, 0, 10), (20, None, None, 20, 20)],
)
def test_log_begins_at_its_log_start_and_else_at_the_earliest_offset(
    log_start: int | None, earliest: int | None, tiered: int | None, first: int, local_start: int
) -> None:
    facts = replace(FACTS, log_start_offset=log_start, earliest_offset=earliest, latest_tiered_offset=tiered)
    assert (facts.first_offset, facts.local_start_offset) == (first, local_start)


def test_leader_epoch_of_an_offset_is_that_of_the_lineage() -> None:
    facts = replace(FACTS, lineage=((0, 5), (3, 10), (4, 20)))
    assert [facts.leader_epoch_at(offset) for offset in (4, 5, 9, 10, 19, 20, 99)] == [None, 0, 0, 3, 3, 4, 4]
    assert facts.leader_epoch == 4
    assert (FACTS.leader_epoch_at(7), FACTS.leader_epoch) == (None, None)
