"""Test that fetches from a real broker's archive give what its consumers got, however they are cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldlog.archive.open_archive import open_archive
from coldlog.errors import UsageError
from coldlog.fetcher import RecordFetcher, open_fetcher
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure
from coldlog.model.states import IsolationLevel
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.warehouse import Warehouse
from contents.record_rows import true_batches
from fetching import as_truth, fetch_all, of_truth, open_fetcher_over, true_records
from worlds.golden_warehouse import golden_partitions
from worlds.kafka_sample import true_segments

PARTITIONS = [
    (str(each["topic"]), int(str(each["partition"])))
    for each in golden_partitions()
    if int(str(each["archive_end"])) >= int(str(each["log_start"]))
]
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


@pytest.fixture(scope="module")
def fetcher(golden_uri: str, golden_archive: Path) -> Iterator[RecordFetcher]:
    with open_fetcher_over(golden_uri, partial(open_archive, str(golden_archive), "local_tiered_storage")) as opened:
        yield opened


@pytest.fixture(scope="module")
def shallow(golden_shallow_uri: str, golden_archive: Path) -> Iterator[RecordFetcher]:
    """A fetcher over tables at batch depth."""
    opener = partial(open_archive, str(golden_archive), "local_tiered_storage")
    with open_fetcher_over(golden_shallow_uri, opener) as opened:
        yield opened


@pytest.fixture(scope="module")
def sidecar(golden_sidecar_uri: str, golden_archive: Path) -> Iterator[RecordFetcher]:
    """A fetcher over tables at sidecar depth."""
    opener = partial(open_archive, str(golden_archive), "local_tiered_storage")
    with open_fetcher_over(golden_sidecar_uri, opener) as opened:
        yield opened


@pytest.mark.parametrize("isolation_level", list(IsolationLevel))
@pytest.mark.parametrize(
    ("depth", "max_bytes"),
    [
        ("sidecar", 1),
        ("sidecar", 1 << 20),
        ("fetcher", 1),
        ("fetcher", 30_000),
        ("fetcher", 1 << 20),
        ("shallow", 1 << 20),
    ],
)
def test_every_record_equals_the_one_that_a_consumer_got(
    request: pytest.FixtureRequest, depth: str, max_bytes: int, isolation_level: IsolationLevel
) -> None:
    fetcher: RecordFetcher = request.getfixturevalue(depth)
    compared, stopped = 0, 0
    for topic, partition in PARTITIONS:
        ends = fetcher.partition_ends(topic, partition)
        assert ends is not None
        walk = fetch_all(fetcher, topic, partition, ends.log_start_offset, max_bytes, isolation_level)
        truths = list(true_records(topic, partition))
        if isolation_level is COMMITTED:
            truths = [each for each in truths if each["rc"]]
            # If a transaction is open at the archive's end, the broker knew its end and read further.
            readable = [each for each in truths if each["o"] < ends.last_stable_offset]
            stopped += len(readable) < len(truths)
            truths = readable
        assert as_truth(walk.records, truths) == of_truth(truths), (topic, partition)
        assert walk.answers[-1].next_offset == ends.readable_end(is_committed=isolation_level is COMMITTED)
        compared += len(walk.records)
        if depth == "sidecar":
            continue
        sizes = {each["base"]: each["size"] for each in true_batches(topic, partition)}
        assert max(each.read_bytes for each in walk.answers) <= max(max_bytes, *sizes.values())
        whole = sum(each["size"] for each in true_batches(topic, partition) if each["last"] >= ends.log_start_offset)
        if isolation_level is UNCOMMITTED:
            assert sum(each.read_bytes for each in walk.answers) == whole, "no byte is read twice"
        if max_bytes == 1:
            # However small the limit is, one batch is returned.
            assert {each.read_bytes for each in walk.answers[:-1]} <= {*sizes.values()}
    assert compared > 65_000
    assert stopped == (3 if isolation_level is COMMITTED else 0)


@pytest.mark.parametrize("isolation_level", list(IsolationLevel))
def test_fetch_may_begin_anywhere_in_a_batch(fetcher: RecordFetcher, isolation_level: IsolationLevel) -> None:
    chance = random.Random(23)
    for topic, partition in PARTITIONS:
        ends = fetcher.partition_ends(topic, partition)
        assert ends is not None
        is_committed = isolation_level is COMMITTED
        end = ends.readable_end(is_committed=is_committed)
        truths = [each for each in true_records(topic, partition) if each["rc"] or not is_committed]
        for offset in chance.choices(range(ends.log_start_offset, end), k=12):
            max_bytes = chance.choice((0, 1, 5_000, 100_000))
            answer = fetcher.fetch_records(topic, partition, offset, max_bytes, isolation_level)
            assert isinstance(answer, FetchedRecords), str(answer)
            own = [each for each in truths if offset <= each["o"] < min(answer.next_offset, end)]
            assert as_truth(answer.records, own) == of_truth(own), (topic, partition, offset)
            batches = [each for each in true_batches(topic, partition) if each["last"] >= offset]
            assert answer.next_offset > batches[0]["base"]
            assert answer.read_bytes <= max(max_bytes, batches[0]["size"])


def test_ends_are_those_of_the_partition(fetcher: RecordFetcher, golden: Warehouse) -> None:
    rows = {
        (row["topic"], row["partition"]): row for row in golden.read(PARTITION_METADATA).where("is_current").collect()
    }
    for true in golden_partitions():
        place = str(true["topic"]), int(str(true["partition"]))
        log_start, archive_end = int(str(true["log_start"])), int(str(true["archive_end"]))
        ends = fetcher.partition_ends(*place)
        if archive_end < log_start:
            # No archived segment remains; the log start was supplied.
            assert ends is None or ends.log_start_offset == ends.end_offset
            continue
        assert ends is not None
        assert (ends.log_start_offset, ends.end_offset) == (log_start, archive_end + 1)
        stable = rows[place]["stable_offset"]
        assert ends.last_stable_offset == min(stable, archive_end + 1)


def test_fetch_at_the_end_is_empty_and_one_out_of_range_is_an_error(fetcher: RecordFetcher) -> None:
    for topic, partition in PARTITIONS:
        ends = fetcher.partition_ends(topic, partition)
        assert ends is not None
        for level in IsolationLevel:
            answer = fetcher.fetch_records(topic, partition, ends.end_offset, isolation_level=level)
            assert isinstance(answer, FetchedRecords)
            assert (answer.records, answer.next_offset, answer.read_bytes) == ((), ends.end_offset, 0)
        for offset in (ends.end_offset + 1, ends.log_start_offset - 1, 1 << 62, -1):
            refused = fetcher.fetch_records(topic, partition, offset)
            assert isinstance(refused, FetchFailure)
            assert refused.error is FetchErrorCode.OFFSET_OUT_OF_RANGE
            assert refused.ends == ends
            said = f"the archive has offsets {ends.log_start_offset} to {ends.end_offset - 1}"
            assert f"{topic}-{partition} at offset {offset}: {said}" in refused.message


def test_readers_of_committed_records_get_nothing_after_an_open_transaction_begins(fetcher: RecordFetcher) -> None:
    ends = fetcher.partition_ends("payments", 1)
    assert ends is not None
    assert ends.last_stable_offset < ends.end_offset
    for offset in (ends.last_stable_offset, ends.end_offset - 1):
        answer = fetcher.fetch_records("payments", 1, offset, isolation_level=COMMITTED)
        assert isinstance(answer, FetchedRecords)
        assert (answer.records, answer.next_offset) == ((), offset)
        assert fetcher.fetch_records("payments", 1, offset) != answer


def test_fetch_of_an_unknown_partition_is_an_error(fetcher: RecordFetcher) -> None:
    for place in (("orders", 7), ("nobody's", 0)):
        refused = fetcher.fetch_records(*place, 0)
        assert isinstance(refused, FetchFailure)
        assert refused.error is FetchErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert str(refused) == (f"UNKNOWN_TOPIC_OR_PARTITION: the archive has no partition {place[0]}-{place[1]}")
    with pytest.raises(UsageError, match="max_bytes of a fetch is -1"):
        fetcher.fetch_records("orders", 0, 0, max_bytes=-1)


def test_arguments_of_other_types_are_converted_or_refused(fetcher: RecordFetcher) -> None:
    known = fetcher.fetch_records("payments", 0, 0, isolation_level=COMMITTED)
    good: dict[str, Any] = {"topic": "payments", "partition": np.int32(0), "offset": np.int64(0)}
    good["isolation_level"] = "read_committed"
    assert fetcher.fetch_records(**good) == known
    bad: list[dict[str, Any]] = [
        {"offset": 1.5},
        {"partition": "0"},
        {"isolation_level": "dirty"},
        {"timeout_ms": None},
    ]
    for wrong in bad:
        with pytest.raises(UsageError, match=next(iter(wrong))):
            fetcher.fetch_records(**{**good, **wrong})
    for place in ((["payments"], 0), ("\ud800", 0), ("payments", True), ("payments", 2**31)):
        with pytest.raises(UsageError):
            fetcher.partition_ends(*place)


def test_rows_read_from_the_tables_are_kept(golden_uri: str, golden_archive: Path) -> None:
    settings = [f"warehouse.uri={golden_uri}", f"archive.uri={golden_archive}"]
    with open_fetcher(settings) as fetcher:
        first = fetch_all(fetcher, "payments", 0, 0, 20_000, COMMITTED)
        read = fetcher.rows_read
        assert read > 0
        again = fetch_all(fetcher, "payments", 0, 0, 20_000, COMMITTED)
        fetcher.refresh()
        assert fetch_all(fetcher, "payments", 0, 0, 20_000, COMMITTED).records == first.records == again.records
        assert fetcher.rows_read == read, "there is no newer version"


def test_committed_fetches_carry_the_aborted_transactions_that_overlap_them(fetcher: RecordFetcher) -> None:
    known: set[tuple[Any, ...]] = {
        (segment["topic"], segment["partition"], *(one[name] for name in ("first", "pid", "last", "lso")))
        for segment in true_segments("COPY_SEGMENT_FINISHED")
        for one in segment["aborted"]
    }
    carried = 0
    for topic, partition in PARTITIONS:
        bases = {each["base"]: each["last"] for each in true_batches(topic, partition)}
        ends = fetcher.partition_ends(topic, partition)
        assert ends is not None
        walk = fetch_all(fetcher, topic, partition, ends.log_start_offset, 30_000, COMMITTED)
        begins = [ends.log_start_offset, *(each.next_offset for each in walk.answers[:-1])]
        for begin, answer in zip(begins, walk.answers, strict=True):
            first = next((base for base, last in sorted(bases.items()) if last >= begin), 0)
            expected = [
                row[2:]
                for row in sorted(known)
                if answer.read_bytes
                and row[:2] == (topic, partition)
                and row[4] >= first
                and row[2] < answer.next_offset
            ]
            found = answer.aborted_transactions
            assert [(a.first_offset, a.producer_id, a.last_offset, a.last_stable_offset) for a in found] == expected
            carried += len(found)
    assert carried > 100
    everything = fetch_all(fetcher, "payments", 0, 0, 30_000, UNCOMMITTED)
    assert not any(answer.aborted_transactions for answer in everything.answers)
