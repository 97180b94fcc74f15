"""Test the search for the next segment with aborts: any order of segments, epochs and gaps, against Kafka's walk."""

from __future__ import annotations

import random

import pytest

from coldlog.index.txn_segments import ServedEpochs, find_txn_segments


def drawn_segments(chance: random.Random) -> list[ServedEpochs]:
    """Segments of some leader epochs each, with gaps of offsets and of epochs between them."""
    drawn: list[ServedEpochs] = []
    at, epoch = chance.randrange(50), chance.randrange(3)
    for number in range(chance.randrange(1, 14)):
        epochs, start = [(epoch, at)], at
        at += chance.randrange(1, 6)
        while chance.random() < 0.3:
            epoch += chance.randrange(1, 3)
            epochs.append((epoch, at))
            at += chance.randrange(1, 5)
        drawn.append(
            ServedEpochs(
                segment_id=f"segment-{number}",
                start_offset=start,
                end_offset=at - 1,
                served_from_offset=start,
                served_to_offset=at - 1,
                leader_epochs=epochs,
                txn_index_empty=chance.choice([True, True, True, False, None]),
            )
        )
        if chance.random() < 0.2:
            at += chance.randrange(1, 9)
        if chance.random() < 0.2:
            epoch += 1
    return drawn


def kafka_walk(segments: list[ServedEpochs], leader_epoch: int, offset: int) -> str | None:
    """As RemoteLogMetadataCache: go from the segment that holds the offset in the epoch to the one after its end."""
    while True:
        for segment in segments:
            ends = [start - 1 for _, start in segment.leader_epochs[1:]] + [segment.end_offset]
            spans = {epoch: (start, end) for (epoch, start), end in zip(segment.leader_epochs, ends, strict=True)}
            if leader_epoch in spans and spans[leader_epoch][0] <= offset <= spans[leader_epoch][1]:
                break
        else:
            return None
        if not segment.txn_index_empty:
            return segment.segment_id
        offset = segment.end_offset + 1


def first_behind(segments: list[ServedEpochs], offset: int) -> str | None:
    return next((each.segment_id for each in segments if each.end_offset >= offset and not each.txn_index_empty), None)


@pytest.mark.parametrize("seed", [1, 2])
def test_intervals_give_the_same_segment_as_a_walk(seed: int) -> None:
    chance, hits = random.Random(seed), 0
    for _ in range(300):
        segments = drawn_segments(chance)
        found = list(find_txn_segments(chance.sample(segments, len(segments))))
        first, last = segments[0].start_offset, segments[-1].end_offset
        for offset in range(first - 2, last + 3):
            for epoch in range(8):
                fit = [
                    each.segment_id
                    for each in found
                    if each.leader_epoch == epoch and each.epoch_from_offset <= offset <= each.to_offset
                ]
                expected = kafka_walk(segments, epoch, offset)
                assert fit == ([] if expected is None else [expected]), (segments, epoch, offset)
                hits += expected is not None
            in_log = [each.segment_id for each in found if each.log_from_offset <= offset <= each.to_offset]
            behind = first_behind(segments, offset)
            assert in_log == ([] if offset < first or behind is None else [behind])
    assert hits > 1_000


def test_a_segment_counts_only_where_it_serves_and_says_whether_its_aborts_are_certain() -> None:
    epochs = [(0, 0), (1, 10), (2, 20)]
    segment = ServedEpochs(
        segment_id="cut",
        start_offset=0,
        end_offset=29,
        served_from_offset=5,
        served_to_offset=14,
        leader_epochs=epochs,
        txn_index_empty=None,
    )
    found = list(find_txn_segments([segment]))
    assert [(each.leader_epoch, each.epoch_from_offset, each.log_from_offset, each.to_offset) for each in found] == [
        (0, 5, 5, 9),
        (1, 10, 10, 14),
    ]
    assert {(each.segment_id, each.start_offset, each.end_offset, each.is_certain) for each in found} == {
        ("cut", 0, 29, False)
    }
