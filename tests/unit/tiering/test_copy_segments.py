"""Test that log directories are copied as Kafka did it, whatever fails on the way, and within the quota."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builders.broker_directory import write_broker_directory
from builders.log_directory_writer import HIGH_WATERMARKS, LOG_STARTS, write_offset_checkpoint, write_partition
from builders.mirror_writer import golden_topics
from builders.segment_builder import Batch, Record, Segment, abort_marker, build_batch, build_segment
from builders.side_files import build_leader_epoch_checkpoint
from coldlog.archive.layouts.local_tiered_storage import ROOT_DIRECTORY, SUFFIXES
from coldlog.archive.layouts.log_windows import LogFile, LogWindow, iter_log_windows
from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.archive.open_archive import open_archive_for_writing
from coldlog.archive.stores.object_store import ObjectStore
from coldlog.errors import ArchiveError, RetriableError, UsageError
from coldlog.formats.kafka.leader_epoch_checkpoint import read_leader_epoch_checkpoint
from coldlog.formats.kafka.remote_log.remote_log_events import SegmentUpdateEvent
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tables.definitions.tier.tier_quotas import TIER_QUOTAS
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tiering.copying.copy_partition import CopyOutcome, PartitionCopy
from coldlog.tiering.copying.copy_segments import CopySummary, copy_segments, random_uuid
from coldlog.tiering.rules.quota_config import QuotaConfig
from copying_tier import OPTIONS, ORDERS, BreakAt, KilledError, Tier, stem_of
from worlds.kafka_sample import TIERED_STORAGE, TrueSegment

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState


def segment(first: int, *, aborts: bool = False, value: bytes = b"v" * 50) -> Segment:
    """Ten offsets; on request the last one is the marker of an aborted transaction."""
    records = tuple(Record(timestamp_ms=1_000 + first + at, value=value) for at in range(9 if aborts else 10))
    producer = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True, "base_sequence": 0} if aborts else {}
    batches = [Batch(base_offset=first, records=records, **producer)]  # type: ignore[arg-type]  # one dict of both
    if aborts:
        batches.append(
            abort_marker(offset=first + 9, timestamp_ms=1_100, producer_id=5, producer_epoch=0, leader_epoch=0)
        )
    return Segment(batches=tuple(batches), index_interval_bytes=0)


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    """Two closed segments of orders-0, the first with an aborted transaction, and the active one; all is committed."""
    found = Tier(root=tmp_path)
    write_partition(found.logs, "orders", 0, [segment(0, aborts=True), segment(10), segment(20)])
    write_offset_checkpoint(found.logs / HIGH_WATERMARKS, {("orders", 0): 30})
    return found


def outcomes(summary: CopySummary) -> dict[str, CopyOutcome]:
    return {f"{each.topic}-{each.partition}": each.outcome for each in summary.partitions}


def only(summary: CopySummary) -> PartitionCopy:
    (found,) = summary.partitions
    return found


# Comparison with a real broker.

HOLDS_LOG_START = {("records-deleted", 972), ("records-deleted", 833)}
"""DeleteRecords moved the log start into them after the broker's copy; earlier epochs are no longer known."""


@pytest.fixture(scope="module")
def golden_tier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tier, list[TrueSegment], CopySummary]:
    """The golden segments copied from where their broker would have had them."""
    tier = Tier(root=tmp_path_factory.mktemp("golden-tier"))
    segments = write_broker_directory(tier.logs, golden_topics())
    return tier, segments, tier.copy()


def test_every_object_equals_the_one_that_the_broker_wrote(
    golden_tier: tuple[Tier, list[TrueSegment], CopySummary],
) -> None:
    tier, segments, summary = golden_tier
    assert set(outcomes(summary).values()) == {CopyOutcome.DONE}
    assert summary.copied_count == len(segments) > 200
    copied = {
        (partition.topic, partition.partition, each.start_offset): stem_of(partition, each)
        for partition, of_partition in tier.segments().items()
        for each in of_partition
    }
    compared = 0
    for true in segments:
        stem = copied[true["topic"], true["partition"], true["start_offset"]]
        assert stem.rpartition("/")[0] == true["path"].rpartition("/")[0]
        for suffix in SUFFIXES.values():
            own, broker = (
                root / f"{name}{suffix}"
                for root, name in ((tier.archive / ROOT_DIRECTORY, stem), (TIERED_STORAGE, true["path"]))
            )
            assert own.exists() == broker.exists(), own
            if suffix != ".leader_epoch_checkpoint" and own.exists():
                assert own.read_bytes() == broker.read_bytes(), own
                compared += 1
    assert compared > 1_000


def test_every_checkpoint_is_cut_as_by_the_broker(
    golden_tier: tuple[Tier, list[TrueSegment], CopySummary],
) -> None:
    """Epochs before the log start were not cut off yet when the broker copied."""
    tier, segments, _ = golden_tier
    true = {(each["topic"], each["partition"], each["start_offset"]): each["path"] for each in segments}
    same = 0
    for partition, of_partition in tier.segments().items():
        for each in of_partition:
            path = true[partition.topic, partition.partition, each.start_offset]
            own, broker = (
                read_leader_epoch_checkpoint(
                    memoryview((root / f"{stem}.leader_epoch_checkpoint").read_bytes())
                ).entries
                for root, stem in ((tier.archive / ROOT_DIRECTORY, stem_of(partition, each)), (TIERED_STORAGE, path))
            )
            assert own[1:] == broker[len(broker) - len(own) + 1 :], path
            assert own[0].start_offset >= broker[len(broker) - len(own)].start_offset
            same += own == broker
    assert same > 250


def test_every_event_equals_the_brokers_event(
    golden_tier: tuple[Tier, list[TrueSegment], CopySummary], golden_truth: Path
) -> None:
    tier, segments, _ = golden_tier
    with (golden_truth / "rlmm-events.jsonl").open(encoding="utf-8") as lines:
        events = [json.loads(line) for line in lines]
    announced = {each["segment_id"]: each for each in events if each["type"] == "segment"}
    found = {
        (partition.topic, partition.partition, each.start_offset): each
        for partition, of_partition in tier.segments().items()
        for each in of_partition
    }
    for true in segments:
        own, broker = found[true["topic"], true["partition"], true["start_offset"]], announced[true["segment_id"]]
        assert (own.state, own.was_copied) == (FINISHED, True)
        assert own.end_offset == broker["end_offset"]
        assert own.size_bytes == broker["size"]
        assert bool(own.txn_index_empty) == broker["txn_idx_empty"]
        if (true["topic"], own.start_offset) not in HOLDS_LOG_START:
            assert dict(own.leader_epochs) == {int(epoch): offset for epoch, offset in broker["leader_epochs"].items()}
        if true["rec_max_ts"] >= 0:
            assert own.max_timestamp_ms == broker["max_ts"]


# Which segments are copied.


def test_closed_segments_are_copied_once_and_the_active_one_is_not(tier: Tier) -> None:
    assert (tier.copy().copied_count, tier.finished()) == (2, [(0, 9), (10, 19)])
    assert tier.copy().copied_count == 0
    tier.require_sound()
    suffixes = set(SUFFIXES.values())
    assert sorted(tier.objects().values(), key=len) == [suffixes - {".txnindex"}, suffixes]
    (first, second) = tier.segments()[ORDERS]
    assert (first.txn_index_empty, second.txn_index_empty, first.broker_id) == (None, True, 7)


def test_segment_that_is_closed_later_is_copied_then(tier: Tier) -> None:
    tier.copy()
    write_later = write_partition(tier.root / "grown", "orders", 0, [segment(n) for n in (0, 10, 20, 30)])
    for path in [*write_later.glob("*020.*"), *write_later.glob("*030.*")]:
        path.rename(tier.logs / "orders-0" / path.name)
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 40})
    assert tier.copy().copied_count == 1
    assert tier.finished() == [(0, 9), (10, 19), (20, 29)]


def test_nothing_after_the_high_watermark_is_copied(tier: Tier) -> None:
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 19})
    assert (tier.copy().copied_count, tier.finished()) == (1, [(0, 9)])


def test_nothing_of_an_open_transaction_is_copied(tier: Tier, tmp_path: Path) -> None:
    open_ended = segment(10, aborts=True)
    logs = Tier(root=tmp_path / "open")
    write_partition(
        logs.logs, "orders", 0, [segment(0), replace(open_ended, batches=open_ended.batches[:1]), segment(20)]
    )
    write_offset_checkpoint(logs.logs / HIGH_WATERMARKS, {("orders", 0): 30})
    logs.copy()
    assert logs.finished() == [(0, 9)]


def test_without_a_high_watermark_closed_segments_are_copied_only_if_assumed_committed(tier: Tier) -> None:
    (tier.logs / HIGH_WATERMARKS).unlink()
    held = only(tier.copy())
    assert held.outcome is CopyOutcome.HELD_BACK
    assert "does not name orders-0" in held.why
    assert only(tier.copy(assumes_committed=True)).copied_count == 2


def test_segments_below_the_log_start_are_not_copied(tier: Tier) -> None:
    write_offset_checkpoint(tier.logs / LOG_STARTS, {("orders", 0): 12})
    tier.copy()
    assert tier.finished() == [(10, 19)]


def test_topics_are_selected_by_pattern_and_internal_ones_never(tier: Tier) -> None:
    for topic in ("payments", "orders.old", "__consumer_offsets", METADATA_TOPIC):
        write_partition(tier.logs, topic, 0, [segment(0), segment(10)])
    names = [("orders", 0), ("payments", 0), ("orders.old", 0), ("__consumer_offsets", 0), (METADATA_TOPIC, 0)]
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, dict.fromkeys(names, 20))
    assert set(outcomes(tier.copy(topics=("orders*",)))) == {"orders-0", "orders.old-0"}
    assert set(outcomes(tier.copy())) == {"orders-0", "orders.old-0", "payments-0"}


@pytest.mark.parametrize("missing", [".index", ".timeindex", "0010.snapshot", "partition.metadata", "leader-epoch"])
def test_segment_that_kafka_would_not_tier_holds_its_partition_back_and_no_other(tier: Tier, missing: str) -> None:
    write_partition(tier.logs, "payments", 0, [segment(0), segment(10)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 30, ("payments", 0): 20})
    for path in (tier.logs / "orders-0").iterdir():
        if missing in path.name and "0020." not in path.name:
            path.unlink()
    summary = tier.copy()
    assert outcomes(summary) == {"orders-0": CopyOutcome.HELD_BACK, "payments-0": CopyOutcome.DONE}
    assert (tier.finished(), tier.segments().get(ORDERS, ())) == ([], ())


def test_topic_with_too_long_a_directory_name_is_held_back_and_not_announced(
    tier: Tier,
) -> None:
    """Kafka's names may have 249 characters; the archive appends partition and topic id."""
    topic = "x" * 249
    write_partition(tier.logs, topic, 0, [segment(0), segment(10)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 30, (topic, 0): 20})
    orders, long = tier.copy().partitions
    assert (orders.copied_count, long.outcome) == (2, CopyOutcome.HELD_BACK)
    assert "would have a name of 274 characters" in long.why
    assert set(tier.segments()) == {ORDERS}


def test_partition_whose_topic_id_is_no_kafka_uuid_is_held_back(tier: Tier) -> None:
    """22 characters hold more than 16 bytes: its events would name another topic than its objects."""
    (tier.logs / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {'A' * 21}B\n")
    held = only(tier.copy())
    assert (held.outcome, held.copied_count) == (CopyOutcome.HELD_BACK, 0)
    assert "no topic id" in held.why
    assert (tier.segments(), tier.objects()) == ({}, {})


def test_log_that_is_shorter_than_its_index_says_is_held_back(tier: Tier) -> None:
    """Cut at the end of a batch, as an incomplete mirror may be: no checksum detects it."""
    log = tier.logs / "orders-0" / f"{0:020d}.log"
    whole = log.read_bytes()
    log.write_bytes(whole[: len(build_batch(segment(0, aborts=True).batches[0]))])
    cut = only(tier.copy())
    assert (cut.outcome, cut.copied_count) == (CopyOutcome.HELD_BACK, 0)
    assert "the log was cut or its mirror is incomplete" in cut.why
    assert not tier.segments()
    log.write_bytes(whole)
    assert only(tier.copy()).copied_count == 2


def test_missing_segment_between_two_others_is_waited_for_and_copied_when_present(tier: Tier) -> None:
    """A mirror that is not done: announced with its offsets, the segment before it would keep it from being copied."""
    log = tier.logs / "orders-0" / f"{10:020d}.log"
    content = log.read_bytes()
    log.unlink()
    lacking = only(tier.copy())
    assert (lacking.outcome, lacking.copied_count) == (CopyOutcome.HELD_BACK, 0)
    assert "offsets 10 to 19 are missing" in lacking.why
    log.write_bytes(content)
    assert only(tier.copy()).copied_count == 2
    assert tier.finished() == [(0, 9), (10, 19)]


def test_log_that_was_cut_after_its_last_index_entry_is_held_back(tier: Tier) -> None:
    """No checksum and no index shows that a batch is missing there."""
    folder = tier.logs / "orders-0"
    log, index = folder / f"{0:020d}.log", folder / f"{0:020d}.index"
    whole = log.read_bytes()
    log.write_bytes(whole[: len(build_batch(segment(0, aborts=True).batches[0]))])
    index.write_bytes(b"")
    cut = only(tier.copy())
    assert (cut.outcome, cut.copied_count) == (CopyOutcome.HELD_BACK, 0)
    assert "offset 9 is missing" in cut.why
    log.write_bytes(whole)
    assert only(tier.copy()).copied_count == 2
    tier.require_sound()


def fetched(first: int) -> Segment:
    """Ten batches of one record as a follower appends them, five at a time."""
    batches = tuple(Batch(base_offset=first + at, records=(Record(timestamp_ms=1_000 + at),)) for at in range(10))
    return Segment(batches=batches, index_interval_bytes=0, batches_per_append=5)


@pytest.mark.parametrize("allows_gaps", [False, True])
@pytest.mark.parametrize("lost_count", [1, 4, 5])
def test_log_of_a_follower_that_was_cut_in_an_indexed_set_is_held_back(
    tmp_path: Path, lost_count: int, allows_gaps: bool
) -> None:
    """The index entry names the end of the set, the position of which is still there."""
    tier = Tier(root=tmp_path)
    folder = write_partition(tier.logs, "orders", 0, [fetched(0), fetched(10)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 20})
    log = folder / f"{0:020d}.log"
    whole = log.read_bytes()
    log.write_bytes(build_segment(fetched(0).batches[:-lost_count]))
    cut = only(tier.copy(allows_gaps=allows_gaps))
    assert (cut.outcome, cut.copied_count) == (CopyOutcome.HELD_BACK, 0)
    assert "the log was cut or its mirror is incomplete" in cut.why
    log.write_bytes(whole)
    # A window ends inside a batch.
    assert only(tier.copy(allows_gaps=allows_gaps, window_bytes=300)).copied_count == 1
    ((partition, (copied,)),) = tier.segments().items()
    for suffix in (".log", ".index", ".timeindex"):
        archived = tier.archive / ROOT_DIRECTORY / f"{stem_of(partition, copied)}{suffix}"
        assert archived.read_bytes() == (folder / f"{0:020d}{suffix}").read_bytes() != b""


def test_empty_log_is_held_back_even_if_gaps_are_allowed(tier: Tier) -> None:
    for suffix in (".log", ".index"):
        (tier.logs / "orders-0" / f"{0:020d}{suffix}").write_bytes(b"")
    held = only(tier.copy(allows_gaps=True))
    assert (held.outcome, held.copied_count) == (CopyOutcome.HELD_BACK, 0)
    assert "is empty; there is nothing to copy" in held.why


def test_log_with_gaps_of_compaction_is_copied_only_if_gaps_are_allowed(tmp_path: Path) -> None:
    tier = Tier(root=tmp_path)
    compacted = replace(
        segment(0), batches=(replace(segment(0).batches[0], records=segment(0).batches[0].records[:7]),)
    )
    write_partition(tier.logs, "orders", 0, [compacted, segment(10), segment(20)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 30})
    held = only(tier.copy())
    assert (held.outcome, held.copied_count) == (CopyOutcome.HELD_BACK, 0)
    assert "copy.allow_gaps=true" in held.why
    assert only(tier.copy(allows_gaps=True)).copied_count == 2
    assert tier.finished() == [(0, 9), (10, 19)]


def test_epochs_that_the_broker_has_removed_stay_in_the_tiers_lineage(tier: Tier) -> None:
    """A broker that does not tier raises its first leader epoch to where its own retention lets the log begin."""
    tier.copy()
    folder = tier.logs / "orders-0"
    shutil.rmtree(folder)
    write_partition(tier.logs, "orders", 0, [segment(n * 10, aborts=not n) for n in range(4)], first=2)
    (folder / "leader-epoch-checkpoint").write_bytes(build_leader_epoch_checkpoint([(0, 20)]))
    write_offset_checkpoint(tier.logs / LOG_STARTS, {("orders", 0): 20})
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 40})
    assert only(tier.copy()).copied_count == 1
    newest = stem_of(ORDERS, tier.segments()[ORDERS][-1])
    archived = (tier.archive / ROOT_DIRECTORY / f"{newest}.leader_epoch_checkpoint").read_bytes()
    entries = read_leader_epoch_checkpoint(memoryview(archived)).entries
    assert [(each.leader_epoch, each.start_offset) for each in entries] == [(0, 0)]


def test_damage_is_not_archived_and_ends_the_work_on_its_partition(tier: Tier) -> None:
    log = tier.logs / "orders-0" / f"{10:020d}.log"
    content = bytearray(log.read_bytes())
    content[80] ^= 1
    log.write_bytes(content)
    damaged = only(tier.copy())
    assert (damaged.outcome, damaged.copied_count, damaged.waiting_count) == (CopyOutcome.DAMAGED, 1, 1)
    assert "checksum" in damaged.why
    assert len(tier.segments()[ORDERS]) == 1


def test_log_that_changes_between_verification_and_copy_is_not_archived(tier: Tier) -> None:
    log = tier.logs / "orders-0" / f"{0:020d}.log"

    def change(step: str) -> None:
        if step.endswith(".log"):
            content = bytearray(log.read_bytes())
            content[-1] ^= 1
            log.write_bytes(content)

    tier.break_at = change
    damaged = only(tier.copy())
    assert (damaged.outcome, damaged.copied_count) == (CopyOutcome.DAMAGED, 0)
    assert "changed between its verification and its copy" in damaged.why
    assert [each.state for each in tier.segments()[ORDERS]] == [DELETED]
    assert tier.objects() == {}


def test_batch_with_another_leader_epoch_than_the_checkpoint_is_not_archived(tier: Tier) -> None:
    (tier.logs / "orders-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n4 15\n")
    damaged = only(tier.copy())
    assert (damaged.outcome, damaged.copied_count) == (CopyOutcome.DONE, 2)
    (tier.logs / "orders-0" / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    wrong = only(Tier(root=tier.root, options=replace(OPTIONS, broker_id=8)).copy())
    assert (wrong.outcome, wrong.copied_count) == (CopyOutcome.DAMAGED, 0)


@pytest.mark.parametrize(("suffix", "entry_bytes"), [("index", 8), ("timeindex", 12)])
def test_indexes_of_a_killed_broker_lose_their_preallocated_zeros(tier: Tier, suffix: str, entry_bytes: int) -> None:
    index = tier.logs / "orders-0" / f"{10:020d}.{suffix}"
    used = index.read_bytes()
    index.write_bytes(used + bytes(entry_bytes * 100))
    tier.copy()
    (copied,) = (tier.archive / ROOT_DIRECTORY).glob(f"*/{10:020d}-*.{suffix}")
    assert copied.read_bytes() == used


def test_segment_without_timestamps_is_announced_with_the_time_of_its_file(tmp_path: Path) -> None:
    tier = Tier(root=tmp_path)
    untimed = Segment(batches=(Batch(base_offset=0, records=(Record(timestamp_ms=-1),)),), index_interval_bytes=0)
    folder = write_partition(tier.logs, "orders", 0, [untimed, segment(1)])
    os.utime(folder / f"{0:020d}.log", ns=(65_000_000, 65_000_000))
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 1})
    assert only(tier.copy()).copied_count == 1
    assert [each.max_timestamp_ms for each in tier.segments()[ORDERS]] == [65]


def test_segment_that_the_broker_deletes_meanwhile_is_retriable(tier: Tier) -> None:
    def delete(step: str) -> None:
        if "event" in step:
            (tier.logs / "orders-0" / f"{10:020d}.log").unlink(missing_ok=True)

    tier.break_at = delete
    gone = only(tier.copy())
    assert (gone.outcome, gone.copied_count) == (CopyOutcome.RETRIABLE, 1)
    assert "no such object" in gone.why
    assert tier.finished() == [(0, 9)]


def test_partition_in_two_log_directories_is_refused(tier: Tier) -> None:
    archive, logs = open_archive_for_writing(str(tier.archive)), [str(tier.logs)] * 2
    with tier.opened_events() as events, pytest.raises(UsageError, match="a broker has a partition only once"):
        copy_segments(logs, archive, events, OPTIONS, tier.clock)


def test_ids_are_kafkas() -> None:
    ids = {random_uuid() for _ in range(2_000)}
    assert len(ids) == 2_000
    assert not any(each.startswith("-") for each in ids)


# Failures.


def steps_of(tier: Tier) -> list[str]:
    """Return every durable step of a whole run, in a separate copy."""
    steps: list[str] = []
    watched = Tier(root=tier.root / "watched", break_at=steps.append)
    (tier.root / "watched").mkdir()
    (tier.root / "watched" / "logs").symlink_to(tier.logs)
    assert watched.copy(threads=1).copied_count == 2
    return steps


WHOLE_RUN_STEPS = 2 * (2 * 2 + 6 + 5)
"""Before and after each: two events per segment, six objects of the first, five of the second."""


def test_copy_has_the_expected_number_of_steps(tier: Tier) -> None:
    assert len(steps_of(tier)) == WHOLE_RUN_STEPS


@pytest.mark.parametrize("number", range(1, WHOLE_RUN_STEPS + 1))
def test_copy_that_was_killed_at_any_step_loses_nothing_and_shows_nothing_half_copied(tier: Tier, number: int) -> None:
    tier.break_at = BreakAt(number, KilledError())
    with pytest.raises(KilledError):
        tier.copy(threads=1)
    tier.break_at = lambda _: None
    tier.require_sound()
    seen = tier.finished()
    assert seen == [(0, 9), (10, 19)][: len(seen)]
    tier.copy(threads=1)
    tier.require_sound()
    assert tier.finished() == [(0, 9), (10, 19)]
    states = [each.state for each in tier.segments()[ORDERS]]
    assert set(states) <= {FINISHED, DELETED}
    assert len(tier.objects()) == 2


@pytest.mark.parametrize("number", range(1, WHOLE_RUN_STEPS + 1))
def test_store_or_log_that_fails_at_any_step_is_reported_and_retried_by_the_next_run(tier: Tier, number: int) -> None:
    tier.break_at = BreakAt(number, RetriableError("the store is down"))
    failed = only(tier.copy(threads=1))
    assert (failed.outcome, failed.outcome.is_failure) == (CopyOutcome.RETRIABLE, True)
    assert "the store is down" in failed.why
    tier.require_sound()
    tier.break_at = lambda _: None
    assert only(tier.copy(threads=1)).outcome is CopyOutcome.DONE
    tier.require_sound()
    assert tier.finished() == [(0, 9), (10, 19)]
    assert len(tier.objects()) == 2


def test_clean_up_is_left_to_the_next_run_if_the_store_stays_down(tier: Tier) -> None:
    def down(step: str) -> None:
        if step.startswith("delete") or (step.startswith("put") and step.endswith(".index")):
            raise RetriableError("the store is down")

    tier.break_at = down
    failed = only(tier.copy())
    assert "the next run deletes the incomplete copy" in failed.why
    assert [each.state for each in tier.segments()[ORDERS]] == [DELETING]
    assert len(tier.objects()) == 1
    announced = list[str]()

    def down_and_told(step: str) -> None:
        announced.extend([step] if "event" in step else [])
        down(step)

    tier.break_at = down_and_told
    assert only(tier.copy()).outcome is CopyOutcome.RETRIABLE
    assert announced == []
    tier.break_at = lambda _: None
    again = only(tier.copy())
    assert (again.cleaned_count, again.copied_count) == (1, 2)
    tier.require_sound()
    assert len(tier.objects()) == 2


def test_clean_up_that_was_killed_is_finished_by_the_next_run(tier: Tier) -> None:
    tier.break_at = BreakAt(8, KilledError())
    with pytest.raises(KilledError):
        tier.copy(threads=1)
    for number in range(1, 9):
        tier.break_at = BreakAt(number, KilledError())
        with pytest.raises(KilledError):
            tier.copy(threads=1)
        tier.require_sound()
    tier.break_at = lambda _: None
    tier.copy()
    tier.require_sound()
    assert tier.finished() == [(0, 9), (10, 19)]


@pytest.mark.parametrize(("has_schedule", "is_killed"), [(False, False), (True, False), (True, True)])
def test_copy_that_is_finished_while_it_is_cleaned_up_is_made_again(
    tier: Tier, has_schedule: bool, is_killed: bool
) -> None:
    """The cluster had not acknowledged the event and wrote it later: readers of the events see a deletion after it."""
    tier.breaks_tables = True

    def copy(name: str) -> CopySummary:
        tier.clock.time_ms += 61_000
        return tier.copy(tier.schedule(name, ignores_times=True) if has_schedule else None, threads=1)

    def lose_answer(step: str) -> None:
        if step == f"event {FINISHED}":
            raise RetriableError("not acknowledged")

    def finish_late(step: str) -> None:
        if step == f"event {DELETING}":
            (started,) = tier.segments()[ORDERS]
            with tier.opened_events() as events:
                events.append(
                    SegmentUpdateEvent(
                        remote_log_segment_id=started.segment_id,
                        broker_id=7,
                        event_timestamp_ms=tier.clock.now_ms(),
                        custom_metadata=None,
                        state=FINISHED,
                    )
                )
        if is_killed and step == f"event {DELETED} done":
            raise KilledError

    tier.break_at = lose_answer
    assert copy("first").copied_count == 0
    tier.break_at = finish_late
    with suppress(KilledError):
        copy("second")
    tier.break_at = lambda _: None
    copy("third")
    assert tier.finished() == [(0, 9), (10, 19)]
    tier.require_sound()


def test_unfinished_copy_of_another_broker_is_left_alone(tier: Tier) -> None:
    tier.break_at = BreakAt(5, KilledError())
    with pytest.raises(KilledError):
        tier.copy(threads=1)
    tier.break_at = lambda _: None
    assert only(tier.copy(broker_id=8)).cleaned_count == 0
    assert sorted(each.state for each in tier.segments()[ORDERS]) == [STARTED, FINISHED, FINISHED]


def test_partition_whose_copy_fails_affects_no_other(tier: Tier) -> None:
    write_partition(tier.logs, "payments", 0, [segment(0), segment(10)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 30, ("payments", 0): 20})

    def down(step: str) -> None:
        if step.startswith("put orders"):
            raise RetriableError("the store is down")

    tier.break_at = down
    assert outcomes(tier.copy()) == {"orders-0": CopyOutcome.RETRIABLE, "payments-0": CopyOutcome.DONE}


# Quota.


def write_firehose(tier: Tier) -> int:
    """Write a partition of twenty closed segments and one of a single segment; return the bytes of a segment."""
    write_partition(tier.logs, "firehose", 0, [segment(10 * number) for number in range(21)])
    write_partition(tier.logs, "trickle", 0, [segment(0), segment(10)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("firehose", 0): 210, ("trickle", 0): 20})
    return (tier.logs / "firehose-0" / f"{0:020d}.log").stat().st_size


def copies_in_time(tier: Tier) -> list[tuple[int, str]]:
    """Return seconds and partition of each finished copy, in order."""
    ended = [
        ((each.event_timestamp_ms - 1_700_000_000_000) // 1000, partition.topic)
        for partition, segments in tier.segments().items()
        for each in segments
    ]
    return sorted(ended)


@pytest.mark.parametrize(("is_fair", "turn"), [(False, 20), (True, 1)])
def test_small_partition_next_to_a_large_one_waits_only_for_one_segment_with_fairness(
    tmp_path: Path, is_fair: bool, turn: int
) -> None:
    """One thread, a second a segment: without fairness the trickle waits for the whole firehose, 20 s, with it 1 s."""
    tier = Tier(root=tmp_path)
    size_bytes = write_firehose(tier)
    summary = tier.copy(threads=1, is_fair=is_fair, quota=QuotaConfig(bytes_per_second=size_bytes))
    in_time = copies_in_time(tier)
    assert [seconds for seconds, _ in in_time] == list(range(21))
    assert [seconds for seconds, topic in in_time if topic == "trickle"] == [turn]
    assert set(outcomes(summary).values()) == {CopyOutcome.DONE}
    assert summary.throttle.gave_up_count == (19 if is_fair else 0)


def test_quota_and_reads_are_spent_only_on_segments_that_are_copied(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition is damaged, one lacks a snapshot; the third is copied without having to wait for them."""
    for topic in ("damaged", "lacking"):
        write_partition(tier.logs, topic, 0, [segment(0), segment(10)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 19, ("damaged", 0): 20, ("lacking", 0): 20})
    log = tier.logs / "damaged-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1] + b"x")
    (tier.logs / "lacking-0" / f"{10:020d}.snapshot").unlink()
    verified = watch_verified_logs(monkeypatch)
    quota = QuotaConfig(bytes_per_second=1)
    summary = tier.copy(tier.schedule(), threads=1, quota=quota)
    assert outcomes(summary) == {
        "damaged-0": CopyOutcome.DAMAGED,
        "lacking-0": CopyOutcome.HELD_BACK,
        "orders-0": CopyOutcome.DONE,
    }
    assert (summary.copied_count, summary.throttle.waited_count, tier.clock.waits) == (1, 0, [])
    (row,) = SmallTable(uri=str(tier.warehouse), table=TIER_QUOTAS).read()
    assert row["taken_bytes"] == summary.copied_bytes
    assert verified == [f"damaged-0/{0:020d}.log", f"orders-0/{0:020d}.log"]


def test_log_is_verified_once_even_if_its_partition_gives_up_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, verified = Tier(root=tmp_path), watch_verified_logs(monkeypatch)
    size_bytes = write_firehose(tier)
    summary = tier.copy(threads=1, is_fair=True, quota=QuotaConfig(bytes_per_second=size_bytes))
    assert (summary.throttle.gave_up_count, len(verified), len(set(verified))) == (19, 21, 21)


def watch_verified_logs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the names of the logs that are read before they are copied."""
    verified, original = list[str](), iter_log_windows

    def watched(store: ObjectStore, log: LogFile, **how: Any) -> Iterator[LogWindow]:
        verified.append(log.name)
        return original(store, log, **how)

    monkeypatch.setattr("coldlog.tiering.rules.source_segment.iter_log_windows", watched)
    return verified


def test_many_threads_keep_one_quota(tmp_path: Path) -> None:
    tier = Tier(root=tmp_path)
    names = [f"topic-{number}" for number in range(6)]
    for name in names:
        write_partition(tier.logs, name, 0, [segment(0), segment(10), segment(20), segment(30)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {(name, 0): 40 for name in names})
    size_bytes = (tier.logs / "topic-0-0" / f"{0:020d}.log").stat().st_size
    summary = tier.copy(threads=6, quota=QuotaConfig(bytes_per_second=size_bytes // 2))
    assert summary.copied_count == 18
    # Each segment is paid before the next one begins.
    assert tier.clock.time_ms - 1_700_000_000_000 >= 17 * 2_000
    assert summary.throttle.waited_ms >= 17 * 2_000


def test_bytes_inside_a_segment_are_spread_if_a_setting_says_so(tier: Tier) -> None:
    sizes = [(tier.logs / "orders-0" / f"{base:020d}.log").stat().st_size for base in (0, 10)]
    tier.copy(bytes_per_second_in_segment=1_000, window_bytes=100)
    assert sum(tier.clock.waits) == pytest.approx(sum(sizes), abs=101)
    assert max(tier.clock.waits) <= 100


def test_damage_in_the_events_stops_the_run_before_anything_is_copied(tier: Tier) -> None:
    tier.copy()
    (log,) = (each for each in tier.metadata.glob("*/*.log") if each.stat().st_size)
    content = bytearray(log.read_bytes())
    content[30] ^= 1
    log.write_bytes(content)
    before = tier.objects()
    with pytest.raises(ArchiveError, match="checksum"):
        tier.copy()
    assert tier.objects() == before
