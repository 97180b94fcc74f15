"""Every kind of discrepancy, beside healthy segments that give none; the archive of a real broker; what is mended."""

from __future__ import annotations

import argparse
import io
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, WrittenSegment, write_archive
from builders.segment_builder import Batch, Record, Segment, abort_marker, build_segment, uuid_text_of
from builders.side_files import build_leader_epoch_checkpoint, extend_lineage
from coldlog.archive.open_archive import open_archive
from coldlog.console import Console
from coldlog.formats.remote_log_events import Event, SegmentMetadataEvent, SegmentUpdateEvent
from coldlog.formats.remote_log_metadata import encode_event
from coldlog.job import Job
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.operations.build import build_indexes
from coldlog.operations.event_rows import event_row
from coldlog.operations.materialize import materialize_metadata
from coldlog.operations.pipeline import reconcile_archive
from coldlog.operations.reconcile import ReconcileSummary, reconcile
from coldlog.operations.scan import scan_segments
from coldlog.settings_sources import load_settings
from coldlog.tables.discrepancies import DISCREPANCIES, DiscrepancyKind, Severity
from coldlog.tables.partition_metadata import PARTITION_METADATA
from coldlog.tables.segment_events import SEGMENT_EVENTS
from coldlog.tables.warehouse import Warehouse
from golden_warehouse import build_settings
from kafka_sample import true_segments

LAYOUT = "local_tiered_storage"
WRITTEN_MS, EVENT_MS = 1_700_000_000_000, 1_700_000_010_000
LONG_AGO_MS = EVENT_MS - 2 * 60 * 60 * 1000
COPYING, COPIED, DELETING, DELETED = RemoteLogSegmentState


def _segment(
    start: int,
    *,
    epochs: tuple[int, int] = (0, 0),
    timestamp_ms: int = 5,
    modified_ms: int = WRITTEN_MS,
    stored_end_offset: int | None = None,
) -> Segment:
    """Two batches of four records."""
    batches = tuple(
        Batch(
            base_offset=start + 4 * number,
            records=tuple(Record(timestamp_ms=timestamp_ms, value=b"v" * 20) for _ in range(4)),
            leader_epoch=epoch,
        )
        for number, epoch in enumerate(epochs)
    )
    return Segment(
        batches=batches, index_interval_bytes=0, modified_ms=modified_ms, stored_end_offset=stored_end_offset
    )


def _aborted(start: int) -> Segment:
    """A transaction of two records and its abort marker."""
    records = (Record(timestamp_ms=5), Record(timestamp_ms=6))
    wrote = Batch(base_offset=start, records=records, is_transactional=True, producer_id=9, producer_epoch=0)
    marker = abort_marker(offset=start + 2, timestamp_ms=7, producer_id=9, producer_epoch=0, leader_epoch=0)
    return Segment(batches=(wrote, marker), index_interval_bytes=0)


@dataclass(slots=True, kw_only=True)
class Cluster:
    """An archive and what was announced of it; a topic a case, all in partition 0."""

    archive: Path
    events: list[Event] = field(default_factory=list)
    written: dict[str, list[WrittenSegment]] = field(default_factory=dict)

    def write(self, topic: str, *segments: Segment) -> list[WrittenSegment]:
        self.written[topic] = write_archive(self.archive, {TopicPartition(topic=topic, partition=0): segments})
        return self.written[topic]

    def announce(
        self, written: WrittenSegment, *states: RemoteLogSegmentState, at_ms: int = EVENT_MS, **changes: object
    ) -> None:
        """What a broker announces of it, except for `changes`; COPY_SEGMENT_FINISHED unless states are given."""
        self.events.append(replace(_first_event(written, at_ms), **changes))  # type: ignore[arg-type]  # its fields
        self.update(written, *(states or (COPIED,)), at_ms=at_ms)

    def update(self, written: WrittenSegment, *states: RemoteLogSegmentState, at_ms: int = EVENT_MS) -> None:
        for state in states:
            if state is not COPYING:
                self.events.append(
                    SegmentUpdateEvent(
                        remote_log_segment_id=_id_of(written),
                        broker_id=1,
                        event_timestamp_ms=at_ms,
                        custom_metadata=None,
                        state=state,
                    )
                )

    def publish(self, warehouse: Warehouse) -> None:
        """Appends what was announced since the last time to `segment_events`, and lists the archive."""
        known = warehouse.read(SEGMENT_EVENTS).count()
        rows = [
            {"metadata_partition": 0, "metadata_offset": offset, **event_row(encode_event(event))}
            for offset, event in enumerate(self.events)
        ]
        warehouse.append(SEGMENT_EVENTS, warehouse.local(SEGMENT_EVENTS, rows[known:]))
        scan_segments(warehouse, open_archive(str(self.archive), LAYOUT))


def _id_of(written: WrittenSegment) -> RemoteLogSegmentId:
    topic = written.topic_partition.topic
    partition = TopicIdPartition(topic=topic, topic_id=uuid_text_of(topic), partition=0)
    return RemoteLogSegmentId(topic_id_partition=partition, segment_id=written.segment_id)


def _first_event(written: WrittenSegment, at_ms: int) -> SegmentMetadataEvent:
    segment = written.segment
    return SegmentMetadataEvent(
        remote_log_segment_id=_id_of(written),
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        broker_id=1,
        max_timestamp_ms=segment.metadata_max_timestamp_ms,
        event_timestamp_ms=at_ms,
        segment_leader_epochs=tuple(extend_lineage([], segment.batches)),
        size_bytes=written.log.stat().st_size,
        custom_metadata=None,
        state=COPYING,
        txn_index_empty=None if _path(written, ".txnindex").exists() else True,
    )


def _path(written: WrittenSegment, suffix: str) -> Path:
    return written.stem.with_name(written.stem.name + suffix)


def _remove(written: WrittenSegment) -> None:
    for path in written.stem.parent.glob(f"{written.stem.name}.*"):
        path.unlink()


def _write_healthy(cluster: Cluster) -> None:
    """What looks odd and is right."""
    ends_early, untimed, aborted = cluster.write(
        "healthy", _segment(0, stored_end_offset=9), _segment(10, timestamp_ms=-1), _aborted(18)
    )
    cluster.announce(ends_early)
    cluster.announce(untimed, max_timestamp_ms=WRITTEN_MS - 777)  # the file's time on the broker
    cluster.announce(aborted)
    [gone, kept] = cluster.write("healthy.retention", _segment(0), _segment(8))
    cluster.announce(gone, COPIED, DELETING, DELETED)
    cluster.announce(kept)
    _remove(gone)
    # Before brokers knew the field they were silent about every segment.
    [old, new] = cluster.write("healthy.upgraded", _segment(0), _segment(8))
    cluster.announce(old, txn_index_empty=None)
    cluster.announce(new)
    # The log start has moved behind the first one, which the broker has yet to delete.
    below, above = cluster.write("healthy.below", _segment(0), _segment(8, epochs=(1, 1)))
    _path(above, ".leader_epoch_checkpoint").write_bytes(build_leader_epoch_checkpoint([(1, 8)]))
    cluster.announce(below)
    cluster.announce(above)
    cluster.write("healthy.unannounced", _segment(0), _aborted(8))


def _write_objects_astray(cluster: Cluster) -> None:
    [missing] = cluster.write("missing", _segment(0))
    cluster.announce(missing)
    shutil.copytree(missing.stem.parent, cluster.archive / "parked")
    _remove(missing)
    [partial] = cluster.write("partial", _segment(0))
    cluster.announce(partial)
    _path(partial, ".timeindex").unlink()
    [announced, _] = cluster.write("orphan", _segment(0), _segment(8))
    cluster.announce(announced)
    [before, _] = cluster.write("arriving", _segment(0), _segment(8, modified_ms=EVENT_MS + 5_000))
    cluster.announce(before)
    [incomplete] = cluster.write("incomplete", _segment(0))
    _path(incomplete, ".index").unlink()
    [deleted] = cluster.write("deleted", _segment(0))
    cluster.announce(deleted, COPIED, DELETING, DELETED)


def _write_unfinished(cluster: Cluster) -> None:
    [failed, retry] = cluster.write("unfinished", _segment(0), replace(_segment(0), segment_id=uuid_text_of("retry")))
    _path(failed, ".index").unlink()
    cluster.announce(failed, COPYING, at_ms=EVENT_MS - 1_000)
    cluster.announce(retry)
    [given_up] = cluster.write("given.up", _segment(0))
    cluster.announce(given_up, COPYING, at_ms=LONG_AGO_MS)
    [copying] = cluster.write("copying", _segment(0))
    cluster.announce(copying, COPYING, at_ms=EVENT_MS - 1_000)
    [deleting] = cluster.write("deleting", _segment(0))
    cluster.announce(deleting, COPIED, DELETING)
    [stuck] = cluster.write("stuck", _segment(0))
    cluster.announce(stuck, COPIED, DELETING, at_ms=LONG_AGO_MS)


def _write_other_content(cluster: Cluster) -> None:
    [size, start, end, newest, epochs] = [
        each for topic in ("size", "start", "end", "time", "epochs") for each in cluster.write(topic, _segment(0))
    ]
    cluster.announce(size, size_bytes=size.log.stat().st_size + 1)
    cluster.announce(start, start_offset=1)
    cluster.announce(end, end_offset=6)
    cluster.announce(newest, max_timestamp_ms=6)
    # Its batches say epoch 0, its checkpoint and what was announced epoch 1.
    _path(epochs, ".leader_epoch_checkpoint").write_bytes(build_leader_epoch_checkpoint([(1, 0)]))
    cluster.announce(epochs, segment_leader_epochs=((1, 0),))
    deposed = cluster.write("deposed", _segment(0), _segment(8, epochs=(1, 1)), _segment(8, epochs=(2, 2)))
    _path(deposed[2], ".leader_epoch_checkpoint").write_bytes(build_leader_epoch_checkpoint([(0, 0), (2, 8)]))
    for written in deposed:
        cluster.announce(written)


def _write_txn_indexes(cluster: Cluster) -> None:
    [denied] = cluster.write("denied", _aborted(0))
    cluster.announce(denied, txn_index_empty=True)
    [doubtful] = cluster.write("doubtful", _aborted(0))
    cluster.announce(doubtful)
    _path(doubtful, ".txnindex").unlink()
    [told, promised] = cluster.write("promised", _segment(0), _segment(8))
    cluster.announce(told)
    cluster.announce(promised, txn_index_empty=None)


def _write_other_problems(cluster: Cluster) -> None:
    """What other tables hold."""
    [broken] = cluster.write("broken", _segment(0))
    os.truncate(broken.log, 30)
    cluster.write("gap", _segment(0), _segment(16))


KIND = DiscrepancyKind
LOG_BYTES = len(build_segment(_segment(0).batches))
EXPECTED = [
    ("arriving", 8, KIND.COPY_UNDERWAY, "COPY_SEGMENT_FINISHED", "no event, 5 objects"),
    ("copying", 0, KIND.COPY_UNDERWAY, "COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED, 5 objects"),
    ("deleted", 0, KIND.DELETED_BUT_LISTED, "no object", "5 objects"),
    ("deleting", 0, KIND.DELETION_UNDERWAY, "DELETE_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED, 5 objects"),
    ("denied", 0, KIND.TXN_INDEX_DENIED, "no aborted transaction", "1 abort markers and a transaction index"),
    ("deposed", 8, KIND.OUTSIDE_LINEAGE, "leader epochs of the newest checkpoint", "leader epochs 1 from offset 8"),
    ("doubtful", 0, KIND.TXN_INDEX_IN_DOUBT, "entries for 1 abort markers", "no entry"),
    ("end", 0, KIND.END_OFFSET_DIFFERS, "offset 6 at most", "offset 7"),
    ("epochs", 0, KIND.LEADER_EPOCHS_DIFFER, "leader epochs 1", "leader epochs 0"),
    ("given.up", 0, KIND.COPY_UNFINISHED, "COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED, 5 objects"),
    ("incomplete", 0, KIND.COPY_INCOMPLETE, "every required file", "no offset_index"),
    ("missing", 0, KIND.SEGMENT_MISSING, f"a log of {LOG_BYTES} bytes and its files", "no object"),
    ("orphan", 8, KIND.ORPHAN, "an event that announces it", "5 objects"),
    ("partial", 0, KIND.FILES_MISSING, "every required file", "no time_index"),
    ("promised", 8, KIND.TXN_INDEX_PROMISED, "aborted transactions", "no abort marker"),
    ("size", 0, KIND.SIZE_DIFFERS, f"{LOG_BYTES + 1} bytes", f"{LOG_BYTES} bytes"),
    ("start", 0, KIND.START_OFFSET_DIFFERS, "offset 1", "offset 0"),
    ("stuck", 0, KIND.DELETION_UNFINISHED, "DELETE_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED, 5 objects"),
    ("time", 0, KIND.MAX_TIMESTAMP_DIFFERS, "6 ms", "5 ms"),
    ("unfinished", 0, KIND.COPY_UNFINISHED, "COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED, 4 objects"),
]
Row = dict[str, object]


def _rows(warehouse: Warehouse) -> list[Row]:
    return warehouse.read(DISCREPANCIES).orderBy(*DISCREPANCIES.key).toArrow().to_pylist()  # type: ignore[no-any-return]


def _told(rows: Iterable[Row]) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in ("topic", "start_offset", "kind", "expected", "found")) for row in rows]


def _commits(warehouse: Warehouse) -> int:
    return len(list((Path(warehouse.uri) / DISCREPANCIES.name / "_delta_log").glob("*.json")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """A cluster with everything wrong, and what its first reconciliation told and wrote."""

    cluster: Cluster
    warehouse: Warehouse
    summary: ReconcileSummary
    rows: list[Row]


@pytest.fixture(scope="module")
def reconciled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Reconciled:
    folder = tmp_path_factory.mktemp("reconcile")
    cluster = Cluster(archive=folder / "archive")
    for write in (
        _write_healthy, _write_objects_astray, _write_unfinished, _write_other_content, _write_txn_indexes,
        _write_other_problems,
    ):  # fmt: skip
        write(cluster)
    warehouse = Warehouse(spark=spark, uri=str(folder / "warehouse"))
    warehouse.create_missing()
    cluster.publish(warehouse)
    build_indexes(warehouse, open_archive(str(cluster.archive), LAYOUT), build_settings())
    materialize_metadata(warehouse)
    summary = reconcile(warehouse)
    return Reconciled(cluster=cluster, warehouse=warehouse, summary=summary, rows=_rows(warehouse))


def test_each_kind_of_discrepancy_is_told_and_nothing_of_what_is_right(reconciled: Reconciled) -> None:
    assert _told(reconciled.rows) == EXPECTED
    assert {kind for _, _, kind, _, _ in EXPECTED} == set(DiscrepancyKind), "every kind occurs"
    for row in reconciled.rows:
        kind = next(each for each in DiscrepancyKind if each.value == row["kind"])
        assert (row["severity"], row["advice"]) == (kind.severity, kind.advice)
        assert row["topic_id"] == uuid_text_of(str(row["topic"]))
    summary = reconciled.summary
    assert (summary.new_count, summary.mended_count) == (20, 0)
    assert [summary.count_of(severity) for severity in Severity] == [8, 8, 4]
    assert (summary.counts["copy_unfinished"], summary.counts["orphan"]) == (2, 1)


def test_what_is_mended_goes_and_what_stays_keeps_its_time_and_nothing_new_is_no_commit(reconciled: Reconciled) -> None:
    cluster, warehouse = reconciled.cluster, reconciled.warehouse
    commits = _commits(warehouse)
    assert reconcile(warehouse).new_count == 0
    assert _commits(warehouse) == commits, "a run that finds what is known writes nothing"

    shutil.copytree(cluster.archive / "parked", cluster.written["missing"][0].stem.parent, dirs_exist_ok=True)
    _remove(cluster.written["orphan"][1])
    cluster.update(cluster.written["copying"][0], COPIED)
    cluster.written["unfinished"][0].log.unlink()
    cluster.publish(warehouse)
    summary = reconcile(warehouse)
    assert (summary.new_count, summary.mended_count) == (0, 3)
    assert _commits(warehouse) == commits + 1, "what goes and what changes is one commit"

    mended = {"missing", "orphan", "copying"}
    expected = [
        (*row[:4], "COPY_SEGMENT_STARTED, 3 objects") if row[0] == "unfinished" else row
        for row in EXPECTED
        if row[0] not in mended
    ]
    rows = _rows(warehouse)
    assert _told(rows) == expected
    first_seen = {row["topic"]: row["first_seen_ms"] for row in reconciled.rows}
    assert all(row["first_seen_ms"] == first_seen[row["topic"]] for row in rows)


def test_operator_reads_everything_that_is_wrong_in_one_place_and_a_scheduler_fails_on_it(
    reconciled: Reconciled,
) -> None:
    warehouse, results = reconciled.warehouse, io.StringIO()

    def run(fail_on: str | None) -> int:
        console = Console(progress=io.StringIO(), results=results)
        settings = load_settings("local", [f"warehouse.uri={warehouse.uri}"])
        arguments = argparse.Namespace(fail_on=fail_on)
        return reconcile_archive(Job(spark=warehouse.spark, settings=settings, arguments=arguments, console=console))

    assert (run("error"), run(None)) == (1, 0)
    problems = warehouse.spark.table("coldlog.archive_problems").toArrow().to_pylist()
    order = [(list(Severity).index(row["severity"]), row["topic"], row["start_offset"]) for row in problems]
    assert order == sorted(order), "the worst come first"
    by_topic = {row["topic"]: row for row in problems}
    discrepancies = [row for row in problems if row["topic"] not in ("broken", "gap")]
    assert sorted(_told(discrepancies)) == sorted(_told(_rows(warehouse)))
    gap, broken = by_topic["gap"], by_topic["broken"]
    assert (gap["start_offset"], gap["kind"], gap["expected"]) == (8, "offset_gap", "offsets 8 to 15")
    assert warehouse.read(PARTITION_METADATA).where("gap_count > 0").count() == 1
    assert (broken["severity"], broken["kind"]) == ("error", "log_truncated")
    assert "00000000000000000000" in broken["found"]
    assert "restore the missing files" in results.getvalue()


def test_severities_are_compared_by_how_grave_they_are() -> None:
    assert [each.is_as_grave_as(Severity.WARNING) for each in Severity] == [True, True, False]
    assert [each.is_as_grave_as(Severity.ERROR) for each in Severity] == [True, False, False]


def test_archive_of_a_real_broker_has_but_the_copy_that_a_kill_cut_short(golden_with_events: Warehouse) -> None:
    [dangling] = true_segments("COPY_SEGMENT_STARTED")
    [row] = golden_with_events.read(DISCREPANCIES).collect()
    assert (row["topic"], row["kind"], row["severity"]) == ("crashy-upload", "copy_unfinished", "warning")
    assert (row["segment_id"], row["start_offset"]) == (dangling["segment_id"], dangling["start_offset"])
