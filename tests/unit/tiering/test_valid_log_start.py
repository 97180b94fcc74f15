"""Test when the log start that expiry has set moves back: only if the log has left the segments that ended there."""

from __future__ import annotations

import pytest

from builders.remote_segments import remote
from coldlog.index.leader_epoch_lineage import LeaderEpochLineage
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.rules.valid_log_start import find_valid_log_start

_, FINISHED, DELETING, DELETED = RemoteLogSegmentState
EXPIRED = remote(0, 9, state=DELETED), remote(10, 19, state=DELETED), remote(20, 29, state=DELETING)


@pytest.mark.parametrize(
    ("epochs", "valid"),
    [
        ({0: 0}, 30),
        ({0: 0, 1: 30}, 30),
        ({1: 30}, 30),
        ({0: 0, 1: 25}, 25),
        ({0: 0, 1: 5, 2: 40}, 5),
        ({3: 0}, 0),
        ({}, 30),
    ],
)
def test_log_start_is_valid_up_to_the_first_offset_of_a_later_leader(epochs: dict[int, int], valid: int) -> None:
    assert find_valid_log_start(30, EXPIRED, LeaderEpochLineage.of(epochs.items())) == valid


def test_log_start_that_no_deleted_segment_explains_is_kept() -> None:
    """The run that set it was killed before its first deletion."""
    lineage = LeaderEpochLineage.of([(0, 0), (1, 25)])
    assert find_valid_log_start(40, (*EXPIRED, remote(30, 39)), lineage) == 40
    assert find_valid_log_start(40, (), lineage) == 40


def test_copy_of_the_new_leader_that_ends_at_the_log_start_too_does_not_confirm_it() -> None:
    lineage = LeaderEpochLineage.of([(0, 0), (1, 25)])
    assert find_valid_log_start(30, (*EXPIRED, remote(20, 29, epochs={0: 20, 1: 25}, number=7)), lineage) == 25


def test_segment_that_the_new_leader_expired_confirms_the_log_start() -> None:
    lineage = LeaderEpochLineage.of([(0, 0), (1, 25)])
    own = remote(20, 29, epochs={0: 20, 1: 25}, number=7, state=DELETED)
    assert find_valid_log_start(30, (*EXPIRED, own), lineage) == 30
