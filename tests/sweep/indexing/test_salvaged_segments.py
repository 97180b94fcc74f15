"""Test that a damaged file costs only what is damaged: rows of sound batches are those of the undamaged segment, and
every other batch is in a hole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from builders.segment_builder import Batch, Record, Segment, abort_marker, build_segment
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from damage.damaged_archives import (
    INDEXED,
    LOG,
    PARTITION,
    Built,
    Partition,
    build_works,
    flips,
    integer_of,
    list_works,
    options,
    small_segment,
    undamaged,
)
from drawn_examples import sampled
from stores.memory_store import MemoryStore

Row = dict[str, object]
DEPTHS = list(IndexDepth)
# Running maxima are over the sound batches only, and bytes that were cut or added move the batches after them.
_MAY_DIFFER = {"position", "previous_running_max_timestamp_ms", "running_max_timestamp_ms"}
_OF_OUTCOME = ("outcome", "txn_index_empty", "open_transaction_count", "open_from_offset")


def salvaged(
    damaged: Partition,
    depth: IndexDepth,
    *,
    is_announced: bool = True,
    size_bytes: int | None = None,
    window_bytes: int = 1 << 20,
) -> Built:
    """The segment in the middle; `size_bytes`: as announced."""
    layout = LocalTieredStorageLayout(store=MemoryStore(damaged.objects))
    work = list_works(layout)[1]
    if is_announced:
        end, largest_ms = damaged.segments[2].start_offset - 1, 1_000_000
        work = replace(work, announced_end_offset=end, announced_max_timestamp_ms=largest_ms)
        work = replace(work, announced_size_bytes=size_bytes)
    (built,) = build_works(layout, [work], options(depth, is_salvaging=True, window_bytes=window_bytes))
    return built


def holes_of(built: Built) -> list[Row]:
    holes = built.outcome["holes"] or []
    assert isinstance(holes, list)
    return holes


def is_lost(offset: object, built: Built) -> bool:
    at = integer_of(offset)
    return any(
        integer_of(hole["from_offset"]) <= at and (hole["to_offset"] is None or at <= integer_of(hole["to_offset"]))
        for hole in holes_of(built)
    )


def without(row: Row, names: set[str]) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def aborted(built: Built) -> list[Row]:
    """Without the last stable offsets, from which no answer is taken."""
    return [without(row, {"last_stable_offset"}) for row in built.rows(TXN_INDEX)]


def require_sound(built: Built, whole: Built, *, is_epoch_told: bool = True) -> int:
    """Check everything that answers are taken from; return the number of batches that are lost."""
    names = _MAY_DIFFER if is_epoch_told else _MAY_DIFFER | {"leader_epoch"}
    truth = {row["base_offset"]: row for row in whole.rows(OFFSET_INDEX)}
    found = built.rows(OFFSET_INDEX)
    assert truth.keys() >= {row["base_offset"] for row in found}
    assert [without(row, names) for row in found] == [without(truth[row["base_offset"]], names) for row in found]
    lost = truth.keys() - {row["base_offset"] for row in found}
    for offset in lost:
        last = truth[offset]["last_offset"]
        assert is_lost(offset, built), (offset, holes_of(built))
        assert is_lost(last, built), (offset, holes_of(built))
        for hole in holes_of(built):
            bound = hole["max_timestamp_bound_ms"]
            is_inside = integer_of(hole["from_offset"]) <= integer_of(offset)
            is_inside &= hole["to_offset"] is None or integer_of(last) <= integer_of(hole["to_offset"])
            assert bound is None or not is_inside or integer_of(truth[offset]["max_timestamp_ms"]) <= integer_of(bound)
    assert not [row for row in found if is_lost(row["base_offset"], built) or is_lost(row["last_offset"], built)]
    stairs = {row["offset"]: row["timestamp_ms"] for row in whole.rows(TIME_INDEX)}
    assert all(stairs.get(row["offset"], row["timestamp_ms"]) == row["timestamp_ms"] for row in built.rows(TIME_INDEX))
    assert aborted(built) == aborted(whole)
    assert {name: built.outcome[name] for name in _OF_OUTCOME} == {name: whole.outcome[name] for name in _OF_OUTCOME}
    return len(lost)


def field_of(at: int, partition: Partition) -> int:
    """The place of a byte in its batch."""
    return at - max(border for border in partition.borders if border <= at)


def flipped(partition: Partition) -> Iterator[tuple[int, bytes]]:
    """Every bit of what no checksum covers, and one bit of every other byte."""
    for at, log in flips(partition.content(LOG), tuple(1 << bit for bit in range(8))):
        if field_of(at, partition) < 17 or log[at] ^ partition.content(LOG)[at] == 1 << at % 8:
            yield at, log


@pytest.mark.parametrize("partition", [PARTITION, INDEXED], ids=["without index entries", "with index entries"])
def test_every_flipped_bit_of_a_log_costs_one_batch(partition: Partition) -> None:
    whole, two = undamaged(IndexDepth.RECORD, is_indexed=partition is INDEXED)[1], 0
    for at, log in sampled(flipped(partition)):
        built = salvaged(partition.with_content(LOG, log), IndexDepth.RECORD)
        if not holes_of(built):
            assert 12 <= field_of(at, partition) < 16, "an epoch made another one that the lineage has"
            require_sound(built, whole, is_epoch_told=False)
            continue
        lost = require_sound(built, whole)
        assert lost in (1, 2)
        two += lost == 2
        assert built.outcome["damaged_files"]
    assert two <= 3, "a base offset that fits as well as the next one"


@pytest.mark.parametrize("is_announced", [True, False])
def test_every_cut_log_serves_the_batches_before_the_cut(*, is_announced: bool) -> None:
    content, borders = INDEXED.content(LOG), INDEXED.borders
    whole = undamaged(IndexDepth.RECORD, is_indexed=True)[1]
    for length in sampled(range(1, len(content))):
        built = salvaged(INDEXED.with_content(LOG, content[:length]), IndexDepth.RECORD, is_announced=is_announced)
        left = sum(border <= length for border in borders[1:])
        if not left:
            assert built.outcome["outcome"] == "quarantined"
            continue
        assert require_sound(built, whole) == len(borders) - 1 - left
        (hole,) = holes_of(built)
        last = INDEXED.segments[2].start_offset - 1 if is_announced else None
        assert (hole["position"], hole["to_offset"]) == (borders[left], last)


DAMAGES: list[Callable[[bytes, int, int], bytes]] = [
    lambda log, first, last: log[:first] + log[last:],
    lambda log, first, last: log[:first] + bytes(last - first) + log[last:],
    lambda log, first, last: log[:last] + log[first:],
    lambda log, first, last: log[:first] + random.Random(first).randbytes(last - first) + log[last:],
]


@pytest.mark.parametrize("damage", DAMAGES, ids=["cut out", "zeroed", "doubled", "overwritten"])
@pytest.mark.parametrize("length", [1, 61, 97, 150])
def test_bytes_that_are_missing_zero_or_there_twice_cost_the_batches_they_were_in(
    damage: Callable[[bytes, int, int], bytes], length: int
) -> None:
    content, borders = INDEXED.content(LOG), INDEXED.borders
    whole = undamaged(IndexDepth.RECORD, is_indexed=True)[1]
    for first in random.Random(length).sample(range(len(content) - length), 80):
        log, end = damage(content, first, first + length), first + length
        if log == content or (length == 1 and 12 <= field_of(first, INDEXED) < 16):
            continue
        window_bytes = 100 if first % 2 else 1 << 20
        built = salvaged(INDEXED.with_content(LOG, log), IndexDepth.RECORD, window_bytes=window_bytes)
        touched = sum(first < border and begin < end for begin, border in pairwise(borders))
        if built.outcome["outcome"] == "quarantined":
            is_spliced = field_of(first, INDEXED) == field_of(end, INDEXED)
            assert is_spliced or touched == len(borders) - 1, "nothing shows which batch is wrong, or none is left"
        else:
            assert require_sound(built, whole) <= touched + 1, (first, length)


@pytest.mark.parametrize("is_announced", [True, False], ids=["size announced", "positions in the offset index"])
def test_whole_batches_that_are_missing_cost_at_most_the_batch_before_them(*, is_announced: bool) -> None:
    """The rest looks like a compacted log. A cut inside two headers gives a batch the offset of another."""
    content, borders = INDEXED.content(LOG), INDEXED.borders
    whole = undamaged(IndexDepth.RECORD, is_indexed=True)[1]
    indexed = 0
    for first, end in combinations(borders[:-1], 2):
        for inside in (0, 8, 12, 17, 21):
            log = content[: first + inside] + content[end + inside :]
            size_bytes = len(content) if is_announced else None
            built = salvaged(INDEXED.with_content(LOG, log), IndexDepth.RECORD, size_bytes=size_bytes)
            if built.outcome["outcome"] == "quarantined":
                continue
            indexed += 1
            lost = borders.index(end) - borders.index(first)
            assert require_sound(built, whole) <= lost + 1, (first, end, inside)
    assert indexed >= 3 * len(borders)


@pytest.mark.parametrize("inside", [8, 12, 21])
def test_batch_that_a_cut_gave_the_offset_of_another_is_left_out(inside: int) -> None:
    partition = _with_log([_batch(offset) for offset in range(8, 15)])
    content, borders = partition.content(LOG), partition.borders
    log = content[: borders[1] + inside] + content[borders[3] + inside :]
    built = salvaged(partition.with_content(LOG, log), IndexDepth.RECORD, size_bytes=len(content))
    assert [row["base_offset"] for row in built.rows(OFFSET_INDEX)] == [8, 12, 13, 14]
    assert [(hole["from_offset"], hole["to_offset"]) for hole in holes_of(built)] == [(9, 11)]


def test_missing_batches_of_a_compacted_log_make_all_its_gaps_holes() -> None:
    """Nothing shows which gap they left."""
    offsets = [8, 9, 11, 12, 15, 16, 17]
    partition = _with_log([_batch(offset) for offset in offsets])
    content, borders = partition.content(LOG), partition.borders
    cut = partition.with_content(LOG, content[: borders[5]] + content[borders[6] :])
    built = salvaged(cut, IndexDepth.RECORD, size_bytes=len(content))
    holes = [(hole["from_offset"], hole["to_offset"], hole["reason"]) for hole in holes_of(built)]
    assert [row["base_offset"] for row in built.rows(OFFSET_INDEX)] == [8, 11, 17]
    assert holes == [(9, 10, "log_truncated"), (12, 16, "log_truncated")]


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".txnindex", b"\0" * 34),
        (".txnindex", b""),
        (".snapshot", b"\0" * 20),
        (".leader_epoch_checkpoint", b"rubbish"),
    ],
)
@pytest.mark.parametrize("depth", DEPTHS)
def test_damaged_side_file_costs_nothing_that_the_log_has(suffix: str, content: bytes, depth: IndexDepth) -> None:
    whole = undamaged(depth, is_indexed=True)[1]
    built = salvaged(INDEXED.with_content(suffix, content), depth)
    assert require_sound(built, whole) == 0
    assert holes_of(built) == []
    texts = built.outcome["damaged_files"]
    assert isinstance(texts, list)
    assert [suffix in text for text in texts] == [True]
    lineage = None if suffix == ".leader_epoch_checkpoint" else whole.outcome["leader_epoch_checkpoint"]
    assert built.outcome["leader_epoch_checkpoint"] == lineage


def _batch(offset: int, value: bytes = b"v") -> Batch:
    return Batch(base_offset=offset, records=(Record(timestamp_ms=offset, value=value),), leader_epoch=1)


def _transactional(offset: int, producer: int, *, is_abort: bool = False) -> Batch:
    if is_abort:
        return abort_marker(offset=offset, timestamp_ms=offset, producer_id=producer, producer_epoch=0, leader_epoch=1)
    batch = replace(_batch(offset), producer_id=producer, producer_epoch=0, base_sequence=offset)
    return replace(batch, is_transactional=True)


LONG_TRANSACTIONS = Partition.of(
    Segment(batches=(_transactional(0, 7), _transactional(1, 8))),
    Segment(batches=(_transactional(2, 8, is_abort=True), _transactional(3, 7), _transactional(4, 9))),
    Segment(batches=(_transactional(5, 7, is_abort=True), _transactional(6, 9))),
)


def _third(partition: Partition) -> Built:
    layout = LocalTieredStorageLayout(store=MemoryStore(partition.objects))
    (built,) = build_works(layout, list_works(layout)[2:], options(IndexDepth.BATCH, is_salvaging=True))
    return built


@pytest.mark.parametrize("damaged", [".txnindex", ".snapshot"])
@pytest.mark.parametrize("content", [b"\0" * 34, b""], ids=["wrong", "emptied"])
@pytest.mark.parametrize("snapshots", [(), (1,), (0, 1)], ids=str)
def test_transactions_of_earlier_segments_are_found_behind_damaged_snapshots(
    damaged: str, snapshots: Sequence[int], content: bytes
) -> None:
    """The logs up to the nearest sound snapshot have them."""
    whole, partition = _third(LONG_TRANSACTIONS), LONG_TRANSACTIONS.with_content(damaged, content, segment=2)
    for number in snapshots:
        partition = partition.with_content(".snapshot", b"\0" * 20, segment=number)
    built = _third(partition)
    assert [(row["producer_id"], row["first_offset"]) for row in whole.rows(TXN_INDEX)] == [(7, 0)]
    assert aborted(built) == aborted(whole)
    assert {name: built.outcome[name] for name in _OF_OUTCOME} == {name: whole.outcome[name] for name in _OF_OUTCOME}
    assert (whole.outcome["open_transaction_count"], whole.outcome["open_from_offset"]) == (1, 4)
    assert built.outcome["damaged_files"] is not None


CONTINUED = Partition.of(
    LONG_TRANSACTIONS.segments[0],
    LONG_TRANSACTIONS.segments[1],
    Segment(batches=(_transactional(5, 7), _transactional(6, 7, is_abort=True), _transactional(7, 9))),
)


def _with_first_offset(partition: Partition, first_offset: int) -> Partition:
    """The transaction index of the third segment has one entry, for producer 7; its transaction began with offset 0."""
    index = partition.content(".txnindex", segment=2)
    assert (len(index), index[10:18]) == (34, bytes(8))
    wrong = index[:10] + first_offset.to_bytes(8, "big") + index[18:]
    return partition.with_content(".txnindex", wrong, segment=2)


@pytest.mark.parametrize(
    ("partition", "first_offset"),
    [(LONG_TRANSACTIONS, 1), (LONG_TRANSACTIONS, 3), (LONG_TRANSACTIONS, 4), (CONTINUED, 2), (CONTINUED, 5)],
    ids=["of another producer", "a later batch", "too late", "between", "in the segment itself"],
)
def test_wrong_beginning_of_a_transaction_in_an_earlier_segment_is_found_and_set_right(
    partition: Partition, first_offset: int
) -> None:
    """The producer snapshot of the segment before has it."""
    whole, built = _third(partition), _third(_with_first_offset(partition, first_offset))
    assert [(row["producer_id"], row["first_offset"]) for row in whole.rows(TXN_INDEX)] == [(7, 0)]
    assert aborted(built) == aborted(whole)
    assert whole.outcome["damaged_files"] is None
    assert ".txnindex" in str(built.outcome["damaged_files"])


def _without_segment(partition: Partition, number: int) -> Partition:
    start = f"/{partition.segments[number].start_offset:020d}-"
    return Partition(partition.segments, {name: each for name, each in partition.objects.items() if start not in name})


def test_beginning_of_a_transaction_is_not_compared_with_a_segment_before_a_gap() -> None:
    """The transaction may have begun in the gap."""
    partition = _without_segment(_with_first_offset(LONG_TRANSACTIONS, 3), 1)
    layout = LocalTieredStorageLayout(store=MemoryStore(partition.objects))
    (built,) = build_works(layout, list_works(layout)[1:], options(IndexDepth.BATCH, is_salvaging=True))
    assert (built.outcome["outcome"], built.outcome["damaged_files"]) == ("indexed", None)
    assert [row["first_offset"] for row in built.rows(TXN_INDEX)] == [3]


def test_beginning_of_a_transaction_is_not_compared_with_a_segment_of_a_former_leader() -> None:
    """Its snapshot has the transactions of another log."""
    lineage = b"0\n2\n0 0\n1 3\n"  # offset 2 has epoch 1 in the segment before
    partition = _with_first_offset(LONG_TRANSACTIONS, 3)
    built = _third(partition.with_content(".leader_epoch_checkpoint", lineage, segment=2))
    assert (built.outcome["outcome"], built.outcome["damaged_files"]) == ("indexed", None)
    assert [row["first_offset"] for row in built.rows(TXN_INDEX)] == [3]


def test_wrong_beginning_of_a_transaction_leaves_a_segment_out_whose_log_is_damaged() -> None:
    log = bytearray(CONTINUED.content(LOG, segment=2))
    log[-1] ^= 1
    damaged = CONTINUED.with_content(LOG, bytes(log), segment=2)
    assert [row["first_offset"] for row in _third(damaged).rows(TXN_INDEX)] == [0]
    assert _third(_with_first_offset(damaged, 2)).outcome["outcome"] == "quarantined"


@pytest.mark.parametrize("damaged", [".txnindex", ".snapshot"])
def test_segment_is_left_out_if_nothing_sound_shows_its_transactions(damaged: str) -> None:
    """A transaction that began earlier would count as committed."""
    partition = LONG_TRANSACTIONS.with_content(damaged, b"\0" * 34, segment=2)
    partition = partition.with_content(".snapshot", b"\0" * 20, segment=1)
    log = bytearray(partition.content(LOG, segment=1))
    log[-1] ^= 1
    built = _third(partition.with_content(LOG, bytes(log), segment=1))
    assert built.outcome["outcome"] == "quarantined"
    assert damaged in str(built.outcome["object_name"])


def test_changed_digit_of_a_checkpoint_costs_at_most_one_batch() -> None:
    """Either one batch contradicts the checkpoint, or several do. Then the checkpoint is wrong."""
    suffix = ".leader_epoch_checkpoint"
    whole = undamaged(IndexDepth.RECORD, is_indexed=True)[1]
    for _, content in flips(INDEXED.content(suffix), (0x01, 0x02, 0x04)):
        built = salvaged(INDEXED.with_content(suffix, content), IndexDepth.RECORD)
        assert require_sound(built, whole) <= 1


def _with_log(batches: Sequence[Batch]) -> Partition:
    """Three segments; the middle one has these batches."""
    segment = Segment(batches=tuple(batches))
    end = segment.batches[-1].last_offset + 1
    return Partition.of(small_segment(0, epoch=0), segment, small_segment(end, epoch=1))


def test_batch_inside_the_value_of_a_record_is_not_taken_for_one_of_the_log() -> None:
    """The value has whole batches with offsets that the log could have, and the batch around them is damaged."""
    value = build_segment([_batch(9), _batch(10)]) + b"rest"
    partition = _with_log([_batch(8), _batch(9, value), _batch(12), _batch(13)])
    first, second = partition.borders[1:3]
    for at in (first + 11, second - 1):  # the length, and the records
        log = bytearray(partition.content(LOG))
        log[at] ^= 1
        built = salvaged(partition.with_content(LOG, bytes(log)), IndexDepth.RECORD)
        assert [row["base_offset"] for row in built.rows(OFFSET_INDEX)] == [8, 12, 13]
        assert [(hole["from_offset"], hole["to_offset"]) for hole in holes_of(built)] == [(9, 11)]


def test_gaps_of_a_compacted_log_are_no_holes() -> None:
    offsets = [8, 11, 15, 16, 30, 41]
    partition = _with_log([_batch(offset) for offset in offsets])
    log = bytearray(partition.content(LOG))
    log[partition.borders[4] - 1] ^= 1
    built = salvaged(partition.with_content(LOG, bytes(log)), IndexDepth.RECORD)
    assert [(hole["from_offset"], hole["to_offset"]) for hole in holes_of(built)] in ([(16, 29)], [(16, 40)])
    assert [row["base_offset"] for row in built.rows(OFFSET_INDEX)][:3] == offsets[:3]


def test_bound_of_a_hole_is_the_largest_timestamp_up_to_the_next_entry_of_the_time_index() -> None:
    """An entry that no sound batch confirms does not count: then the announced maximum is the bound."""
    partition = _with_log([_batch(offset) for offset in range(8, 20)])
    log, index = bytearray(partition.content(LOG)), bytearray(partition.content(".timeindex"))
    log[partition.borders[3] - 1] ^= 1
    damaged = partition.with_content(LOG, bytes(log))
    (hole,) = holes_of(salvaged(damaged, IndexDepth.RECORD))
    assert (hole["from_offset"], hole["to_offset"]) == (10, 10)
    bound = integer_of(hole["max_timestamp_bound_ms"])
    assert 10 <= bound < 20
    at = next(at for at in range(0, len(index), 12) if int.from_bytes(index[at : at + 8], "big") == bound)
    for later in range(at, len(index), 12):
        index[later + 7] += 100
    (unconfirmed,) = holes_of(salvaged(damaged.with_content(".timeindex", bytes(index)), IndexDepth.RECORD))
    assert unconfirmed["max_timestamp_bound_ms"] == 1_000_000


def test_segment_is_left_out_if_nothing_is_to_be_salvaged() -> None:
    log = bytearray(INDEXED.content(LOG))
    log[-1] ^= 1
    layout = LocalTieredStorageLayout(store=MemoryStore(INDEXED.with_content(LOG, bytes(log)).objects))
    (built,) = build_works(layout, list_works(layout)[1:2], options(IndexDepth.RECORD, is_salvaging=False))
    assert (built.outcome["outcome"], built.outcome["holes"]) == ("quarantined", None)
