"""Test fetches from built archives: overlaps, gaps, compaction, transactions, damage, missing or unreachable logs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.archive.open_archive import open_archive
from coldlog.errors import RetriableError, UsageError
from coldlog.fetcher import RecordFetcher
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.indexing.scan.scan import scan_segments
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure
from coldlog.model.states import IsolationLevel
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.table_files import list_table_files
from coldlog.tables.delta.warehouse import Warehouse
from fetching import HookedLayout, fetch_all, open_fetcher_over
from virtual_clock import VirtualClock
from worlds.written_topics import COMMITTED_OFFSETS, START_MS, Written, copy_written, damage_segment, remove_segment

COMMITTED = IsolationLevel.READ_COMMITTED


def vacuum(folder: Path, table: TableDefinition) -> list[Path]:
    """Remove the files that the newest version does not name."""
    named = {folder / path for path in list_table_files(str(folder), table, ()).paths}
    old = [path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts and path not in named]
    for path in old:
        path.unlink()
    return old


@pytest.fixture(scope="module")
def copied(written_uri: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Written]:
    """The archive with damage that the build found, as tests may change it."""
    return copy_written(written_uri, tmp_path_factory.mktemp("written"))


@pytest.fixture(scope="module")
def archive(copied: tuple[Path, Path, Written]) -> Path:
    return copied[0]


@pytest.fixture(scope="module")
def written(copied: tuple[Path, Path, Written]) -> Written:
    return copied[2]


@pytest.fixture(scope="module")
def indexed(spark: SparkSession, copied: tuple[Path, Path, Written]) -> Warehouse:
    return Warehouse(spark=spark, uri=str(copied[1]))


@pytest.fixture(scope="module")
def fetcher(indexed: Warehouse, archive: Path) -> Iterator[RecordFetcher]:
    with open_fetcher_over(indexed.uri, partial(open_archive, str(archive), "local_tiered_storage")) as opened:
        yield opened


def offsets(fetcher: RecordFetcher, topic: str, offset: int, **options: object) -> tuple[list[int], int]:
    """Return the offsets of one fetch, and the next offset."""
    answer = fetcher.fetch_records(topic, 0, offset, **options)  # type: ignore[arg-type]  # a test names one at a time
    assert isinstance(answer, FetchedRecords), str(answer)
    return [each.offset for each in answer.records], answer.next_offset


def refusal(fetcher: RecordFetcher, topic: str, offset: int, **options: object) -> FetchFailure:
    answer = fetcher.fetch_records(topic, 0, offset, **options)  # type: ignore[arg-type]
    assert isinstance(answer, FetchFailure)
    return answer


@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
def test_every_offset_of_overlapping_uploads_is_read_once_from_the_served_log(
    fetcher: RecordFetcher, max_bytes: int
) -> None:
    walk = fetch_all(fetcher, "overlap", 0, 0, max_bytes)
    assert [each.offset for each in walk.records] == list(range(120))
    said = [(each.value or b"")[:1] for each in walk.records]
    assert said == [b"v"] * 50 + [b"n"] * 70
    assert [each.leader_epoch for each in walk.records] == [0] * 50 + [1] * 70


def test_fetch_reads_only_one_segment(fetcher: RecordFetcher) -> None:
    assert offsets(fetcher, "overlap", 38) == ([38, 39], 40)
    assert offsets(fetcher, "overlap", 40) == (list(range(40, 120)), 120)


def test_gap_is_out_of_range_with_the_offset_to_continue_at(fetcher: RecordFetcher) -> None:
    for offset in (50, 77, 99):
        refused = refusal(fetcher, "gap", offset)
        assert refused.error is FetchErrorCode.OFFSET_OUT_OF_RANGE
        assert refused.resume_offset == 100
        assert "no served segment has" in refused.message
    assert offsets(fetcher, "gap", 100)[0] == list(range(100, 150))


def test_offsets_removed_by_compaction_are_skipped(fetcher: RecordFetcher) -> None:
    assert offsets(fetcher, "holes", 3, max_bytes=1) == ([4, 7, 12], 16)
    assert offsets(fetcher, "holes", 8, max_bytes=1) == ([12], 16)
    assert offsets(fetcher, "holes", 13, max_bytes=1) == ([], 16), "a batch of which nothing is left"
    assert offsets(fetcher, "holes", 16, max_bytes=1) == ([], 30)
    assert offsets(fetcher, "holes", 30, max_bytes=1) == ([40], 41)
    assert offsets(fetcher, "holes", 16) == ([40], 41)
    walk = fetch_all(fetcher, "holes", 0, 3, 1)
    assert [(each.offset, each.timestamp_ms, each.timestamp_type.value) for each in walk.records] == [
        (4, START_MS, "CreateTime"), (7, START_MS, "CreateTime"), (12, START_MS, "CreateTime"),
        (40, START_MS, "LogAppendTime"),
    ]  # fmt: skip


def test_nulls_names_of_headers_and_times_before_1970_are_as_for_a_consumer(fetcher: RecordFetcher) -> None:
    first, second = fetch_all(fetcher, "names", 0, 0, 1).records
    assert first.headers == (("\ufffd\ufffd-a", None), ("ключ", b""))
    assert (first.key, first.value, second.key, second.value) == (b"", None, None, b"")
    assert (first.timestamp_ms, second.timestamp_ms, second.headers) == (-1, -5_000_000_000_000, ())


@pytest.mark.parametrize("max_bytes", [1, 200, 1 << 20])
def test_aborted_records_are_skipped_wherever_their_marker_is_and_a_fetch_begins(
    fetcher: RecordFetcher, max_bytes: int
) -> None:
    for start in range(17):
        walk = fetch_all(fetcher, "transactions", 0, start, max_bytes, COMMITTED)
        assert [each.offset for each in walk.records] == [each for each in COMMITTED_OFFSETS if each >= start]
        assert walk.answers[-1].next_offset == 17, "9's transaction is open where the archive ends"
    everything = fetch_all(fetcher, "transactions", 0, 0, max_bytes)
    assert [each.offset for each in everything.records] == [o for o in range(18) if o not in (9, 11, 14, 15)]
    assert everything.answers[0].ends.last_stable_offset == 17


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_records_of_a_transaction_whose_end_is_lost_do_not_count_as_committed(
    fetcher: RecordFetcher, max_bytes: int
) -> None:
    committed = {"isolation_level": COMMITTED, "max_bytes": max_bytes}
    assert offsets(fetcher, "undecided", 0, **committed) == ([*range(5)], 5)
    for offset in (5, 9, 12):
        refused = refusal(fetcher, "undecided", offset, **committed)
        assert (refused.error, refused.resume_offset) == (FetchErrorCode.OFFSET_OUT_OF_RANGE, 19)
        assert refused.message.endswith("; records from 5 on may belong to a transaction that was aborted there")
    assert offsets(fetcher, "undecided", 19, **committed) == ([19], 21 if max_bytes > 1 else 20)
    assert offsets(fetcher, "undecided", 0) == ([*range(13)], 13)


def test_offsets_of_a_quarantined_segment_are_corrupt_with_the_reason(fetcher: RecordFetcher, written: Written) -> None:
    bad = written["bad"][1]
    assert offsets(fetcher, "bad", 45) == ([45, 46, 47, 48, 49], 50)
    refused = refusal(fetcher, "bad", 60)
    assert refused.error is FetchErrorCode.CORRUPT_MESSAGE
    assert refused.resume_offset == 100
    said = f"bad-0 at offset 60: segment {bad.segment_id}, which begins at offset 50, is in quarantine: "
    assert refused.message.startswith(f"{said}batch does not match its checksum in ")
    assert f"{bad.segment_id}.log at byte " in refused.message
    assert offsets(fetcher, "bad", 100)[1] == 150
    at_end = refusal(fetcher, "bad-end", 100)
    assert (at_end.error, at_end.resume_offset) == (FetchErrorCode.CORRUPT_MESSAGE, None)
    assert f"segment {written['bad-end'][2].segment_id}, which begins at offset 100, is in quarantine" in at_end.message


@pytest.mark.parametrize(("topic", "named"), [("log-and-snapshot", ".snapshot"), ("log-and-txn-index", ".txnindex")])
def test_segment_that_lost_its_log_and_what_shows_its_transactions_is_corrupt(
    fetcher: RecordFetcher, topic: str, named: str
) -> None:
    assert offsets(fetcher, topic, 45) == ([45, 46, 47, 48, 49], 50)
    for offset in (50, 70, 90, 98):
        refused = refusal(fetcher, topic, offset)
        assert (refused.error, refused.resume_offset) == (FetchErrorCode.CORRUPT_MESSAGE, 99)
        assert "is in quarantine: " in refused.message
        assert named in refused.message
    assert offsets(fetcher, topic, 99)[0][0] == 99


@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
def test_offsets_that_a_damaged_log_has_lost_are_corrupt_and_the_others_are_fetched(
    fetcher: RecordFetcher, written: Written, max_bytes: int
) -> None:
    lost = [*range(5), *range(60, 70), *range(80, 85), *range(145, 150)]
    read, at = [], 0
    while at < 145:
        answer = fetcher.fetch_records("torn", 0, at, max_bytes=max_bytes)
        if isinstance(answer, FetchFailure):
            assert (answer.error, at in lost) == (FetchErrorCode.CORRUPT_MESSAGE, True), str(answer)
            at = answer.resume_offset or 0
        else:
            read += [each.offset for each in answer.records]
            at = answer.next_offset
    assert read == [offset for offset in range(150) if offset not in lost]
    for offset, segment, position, following in ((0, 0, 0, 5), (63, 1, 2, 70), (80, 1, 6, 85), (145, 2, 9, 145)):
        refused = refusal(fetcher, "torn", offset)
        begin = written["torn"][segment].log.stat().st_size // 10 * position
        assert (
            f"the log of segment {written['torn'][segment].segment_id} is damaged from byte {begin} on"
            in refused.message
        )
        assert refused.resume_offset == following


def test_damage_is_reported_when_a_fetch_begins_at_it_and_earlier_batches_are_returned(
    fetcher: RecordFetcher, written: Written
) -> None:
    assert offsets(fetcher, "hurt", 50)[1] == 100
    position = damage_segment(written["hurt"][1])
    # Nothing after the damage is returned, although it was read with the rest.
    assert offsets(fetcher, "hurt", 50) == (list(range(50, 95)), 95)
    for options in ({}, {"max_bytes": 1}):
        refused = refusal(fetcher, "hurt", 95, **options)
        assert refused.error is FetchErrorCode.CORRUPT_MESSAGE
        assert f"segment {written['hurt'][1].segment_id} of hurt-0: batch does not match" in refused.message
        assert f".log at byte {position}: expected crc " in refused.message
        assert refused.message.endswith("the batch has offsets 95 to 99")
        assert refused.resume_offset == 100
    assert offsets(fetcher, "hurt", 100)[1] == 150


def test_log_that_was_cut_or_replaced_is_reported(fetcher: RecordFetcher, written: Written) -> None:
    log = written["hurt"][2].log
    log.write_bytes(log.read_bytes()[:-10])
    assert offsets(fetcher, "hurt", 100) == (list(range(100, 145)), 145)
    assert "log is shorter than when it was indexed" in refusal(fetcher, "hurt", 147).message
    log = written["gap"][2].log
    shutil.copyfile(written["gap"][0].log, log)
    refused = refusal(fetcher, "gap", 110)
    assert refused.error is FetchErrorCode.CORRUPT_MESSAGE
    assert "batch begins before the end of the previous batch" in refused.message
    shutil.copyfile(written["gone"][1].log, written["gap"][0].log)
    refused = refusal(fetcher, "gap", 10)
    assert "log was replaced after it was indexed" in refused.message
    assert "expected offsets 10 to 14, found offsets 60 to 64" in refused.message


def test_missing_segments_are_out_of_range_and_newer_tables_are_read(
    indexed: Warehouse, archive: Path, written: Written
) -> None:
    opener, clock = partial(open_archive, str(archive), "local_tiered_storage"), VirtualClock()
    with open_fetcher_over(indexed.uri, opener) as fetcher, open_fetcher_over(indexed.uri, opener, clock) as idle:
        assert offsets(fetcher, "gone", 7)[1] == 50
        remove_segment(written["gone"][0])
        # The tables still name it.
        refused = refusal(fetcher, "gone", 7)
        assert refused.error is FetchErrorCode.OFFSET_OUT_OF_RANGE
        assert refused.ends is not None
        assert (refused.ends.log_start_offset, refused.ends.end_offset, refused.resume_offset) == (50, 150, 50)
        assert f"segment {written['gone'][0].segment_id} with offsets 0 to 49 is missing" in refused.message
        assert "the archive has offsets 50 to 149" in refused.message
        remove_segment(written["gone"][1])
        assert "the next archived offset is 100" in refusal(fetcher, "gone", 60).message
        # Now they do not; the fetcher refreshes by itself.
        scan_segments(indexed, opener())
        materialize_metadata(indexed)
        refused = refusal(fetcher, "gone", 60)
        assert refused.error is FetchErrorCode.OFFSET_OUT_OF_RANGE
        assert refused.ends is not None
        assert (refused.ends.log_start_offset, refused.ends.end_offset) == (100, 150)
        assert "is missing" not in refused.message
        assert offsets(fetcher, "gone", 100)[1] == 150
        # Files of the idle fetcher's version were deleted: it opens the tables again for its next attempt.
        for table in (SEGMENTS, PARTITION_METADATA):
            assert vacuum(Path(indexed.uri, table.name), table)
        assert offsets(idle, "gone", 100)[1] == 150
        assert clock.waits == [100]


def test_archive_that_does_not_answer_is_asked_again_until_the_timeout(indexed: Warehouse, archive: Path) -> None:
    failures, read = [0], list[str]()

    def before_read(segment_id: str) -> None:
        read.append(segment_id)
        if failures[0]:
            failures[0] -= 1
            raise RetriableError("the store said 503")

    def open_layout() -> HookedLayout:
        return HookedLayout(layout=open_archive(str(archive), "local_tiered_storage"), before_read=before_read)

    clock = VirtualClock()
    with open_fetcher_over(indexed.uri, open_layout, clock) as fetcher:
        failures[0] = 6
        assert offsets(fetcher, "bad", 0)[1] == 50
        assert clock.waits == [100, 200, 400, 800, 1000, 1000]
        clock.waits.clear()
        failures[0] = 1_000
        begun_ms = clock.monotonic_ms()
        refused = refusal(fetcher, "bad", 0, timeout_ms=2_250)
        assert refused.error is FetchErrorCode.REQUEST_TIMED_OUT
        assert refused.message == (
            "bad-0 at offset 0: no answer within 2250 ms; 6 attempts failed, the last one: the store said 503"
        )
        assert clock.waits == [100, 200, 400, 800, 750], "the last attempt is made when the time is over"
        assert clock.monotonic_ms() - begun_ms == 2_250
        assert refusal(fetcher, "bad", 0, timeout_ms=0).error is FetchErrorCode.REQUEST_TIMED_OUT
        failures[0] = 0
        assert offsets(fetcher, "bad", 0)[1] == 50


def test_archive_that_was_unreachable_is_read_when_it_is_back(indexed: Warehouse, archive: Path) -> None:
    class Mounting(VirtualClock):
        def wait_ms(self, duration_ms: int) -> None:
            VirtualClock.wait_ms(self, duration_ms)
            if len(self.waits) == 3:
                away.rename(archive)

    clock, away = Mounting(), archive.with_name("away")
    with open_fetcher_over(indexed.uri, partial(open_archive, str(archive), "local_tiered_storage"), clock) as fetcher:
        archive.rename(away)
        assert offsets(fetcher, "bad", 0) == (list(range(50)), 50)
        assert len(clock.waits) == 3
    with pytest.raises(UsageError, match="no archive at"):
        open_fetcher_over(indexed.uri, partial(open_archive, str(archive / "elsewhere"), "local_tiered_storage"))
    with pytest.raises(UsageError, match="run the pipeline into this warehouse first"):
        open_fetcher_over(str(archive), partial(open_archive, str(archive), "local_tiered_storage"))
