"""Test which listed segments lost events may have announced, against all orders in which a broker may have copied."""

from __future__ import annotations

from random import Random

from coldlog.indexing.scan.lost_announcements import may_be_announced, segment_key
from coldlog.tables.delta.row_edits import Row

_PLACE = {"topic": "a", "partition": 0, "topic_id": "id-1"}


def _listed(start_offset: int) -> Row:
    return {**_PLACE, "segment_id": f"segment-{start_offset}", "start_offset": start_offset}


def _announced(start_offset: int, at: int) -> Row:
    return {"announced_start_offset": start_offset, "metadata_partition": 3, "metadata_offset": at}


def test_an_announcement_may_be_lost_between_those_of_its_neighbours() -> None:
    random, counts = Random(5), {True: 0, False: 0}
    for _ in range(400):
        starts = sorted(random.sample(range(100), random.randint(1, 8)))
        places = sorted(random.sample(range(60), len(starts)))
        lost = sorted(random.sample([each for each in range(60) if each not in places], random.randint(0, 3)))
        told = dict(zip(starts, places, strict=True))
        listed = [*starts, *random.sample([each for each in range(100) if each not in starts], 5)]
        announced = {segment_key(_listed(start)): _announced(start, at) for start, at in told.items()}
        found = may_be_announced(map(_listed, listed), announced, {3: lost, 4: [*range(60)]})
        for start in listed:
            # In the order of offsets, its announcement lies behind those before it and before those behind it.
            may_be = start not in told and any(
                all((at < place) == (other < start) for other, at in told.items()) for place in lost
            )
            assert (segment_key(_listed(start)) in found) == may_be
            counts[may_be] += 1
    assert min(counts.values()) > 200


def test_a_partition_without_announcements_lacks_none() -> None:
    other = {**_listed(5), "partition": 1}
    announced = {segment_key(_listed(1)): _announced(1, 10)}
    assert segment_key(_listed(5)) in may_be_announced([_listed(5), other], announced, {3: [20]})
    assert segment_key(other) not in may_be_announced([_listed(5), other], announced, {3: [20]})
    assert may_be_announced([_listed(5)], announced, {}) == frozenset()
    without_offsets = {segment_key(_listed(1)): _announced(1, 10) | {"announced_start_offset": None}}
    assert may_be_announced([_listed(5)], without_offsets, {3: [20]}) == frozenset()
