"""Check that a local log goes on where the archive ends.

Logs with the same leader epoch at an offset have the same records up to it (Kafka's log matching). So the local log
continues the archive if both have one epoch at the archive's last offset. If it begins after that offset and its
lineage does not reach back, its first epoch must not be older. The logs differ after an unclean leader election, or if
a directory is of a replica that was not truncated: then one of them has records that the partition no longer has.
"""

from __future__ import annotations

from collections.abc import Sequence

from coldlog.lookups.local.local_tier import LocalLogState, LocalTier


def find_contradiction(
    local: LocalTier,
    topic: str,
    partition: int,
    state: LocalLogState,
    archive_end: int,
    lineage: Sequence[tuple[int, int]],
) -> str | None:
    """Say in which leader epoch the local log differs from the archive, which has `lineage` (epochs and their first
    offsets, ascending) and ends before `archive_end`; None if it does not, or if that is not known."""
    last = min(archive_end, state.high_watermark) - 1
    known = next((epoch for epoch, first in reversed(lineage) if first <= last), -1)
    if known < 0:
        return None
    found = local.leader_epoch_at(topic, partition, last)
    if found < 0:
        following = local.leader_epoch_at(topic, partition, last + 1)
        if not 0 <= following < known:
            return None
        return f"the archive's last leader epoch is {known}, but offset {last + 1} has {following} there"
    return None if found == known else f"offset {last} has leader epoch {known} in the archive, but {found} there"
