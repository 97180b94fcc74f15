"""Compare everything that golden clusters answered with what the tables of their archives answer.

Each comparison asks the same of all archives at once and counts, per cluster, what was asked and what differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pyspark.sql import functions as F

from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import list_offsets_in_no_hurry
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp
from coldlog.model.states import IndexStatus, IsolationLevel
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.record_rows import as_truth, of_truth, read
from contents.table_contents import rows_in
from servers.kafka_clusters import CLUSTER_NAMES, Line, iter_true_records, metadata_partitions, shape_of, true_lines

Place = tuple[str, int]
FINISHED = "COPY_SEGMENT_FINISHED"
_NO_STOP = 1 << 62
SPECIAL_TIMESTAMPS = {
    SpecialTimestamp.EARLIEST: "earliest",
    SpecialTimestamp.LATEST_TIERED: "latest_tiered",
    SpecialTimestamp.EARLIEST_PENDING_UPLOAD: "earliest_pending_upload",
}
"""Those that an archive alone can answer as a broker does; brokers that are too old for one did not answer it."""
NEVER_ARCHIVED: dict[Place, range] = {("lost-3.6.2", 0): range(128, 312)}
"""Offsets that no segment of the lineage holds.

After an unclean election Kafka 3.6.2 takes everything up to the old leader's last archived offset for copied, so that
the newer epoch's records there are never archived. Its consumers get records of the epoch that was lost instead, then
OFFSET_OUT_OF_RANGE. We serve none of them. Its ListOffsets passes the segment over in which the epochs part; so do we
with broker_compatible, while the exact rule answers from the part of it that counts.
"""


@dataclass(slots=True)
class Compared:
    """How much was asked of each cluster, and where the tables differ: cluster, truth, what was found."""

    asked: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, object, object]] = field(default_factory=list)

    def add(self, cluster: str, truth: object, found: object) -> None:
        """Count one answer."""
        self.asked[cluster] += 1
        if truth != found:
            self.wrong.append((cluster, truth, found))

    def cell(self, cluster: str) -> str:
        """How many were right, as docs/reference/versions.md has it."""
        wrong = sum(each[0] == cluster for each in self.wrong)
        asked = self.asked[cluster]
        return ("–" if not asked else f"{asked:,}") if not wrong else f"{asked - wrong:,} of {asked:,}"


def _true_lines(name: str) -> Iterator[tuple[str, Line]]:
    return ((cluster, each) for cluster in CLUSTER_NAMES for each in true_lines(cluster, name))


def compare_segments(clusters: Warehouse) -> Compared:
    """Finished segments are indexed, and all say what was announced of them and what Kafka reads in them."""
    compared = Compared()
    rows = {row["segment_id"]: row for row in rows_in(clusters, SEGMENTS)}
    for cluster, truth in _true_lines("segments"):
        row = rows[truth["segment_id"]]
        names = {
            "start_offset": "start_offset",
            "announced_end_offset": "end_offset",
            "announced_max_timestamp_ms": "max_ts",
        }
        wanted: Line = {"state": truth["state"], **{own: truth[name] for own, name in names.items()}}
        if truth["state"] == FINISHED:
            wanted |= {"batch_count": truth["batches"], "control_batch_count": truth["control_batches"]}
            wanted |= {"index_status": IndexStatus.INDEXED.value, "end_offset": truth["end_offset"]}
        compared.add(cluster, wanted, {name: row[name] for name in wanted})
    return compared


def compare_leader_epochs(clusters: Warehouse) -> Compared:
    """Segments name the leader epochs that were announced; every record's is the one that a consumer got."""
    compared = Compared()
    rows = {row["segment_id"]: row["segment_leader_epochs"] for row in rows_in(clusters, SEGMENTS)}
    for cluster, truth in _true_lines("segments"):
        if truth["state"] == FINISHED:
            found = {str(each["leader_epoch"]): each["start_offset"] for each in rows[truth["segment_id"]]}
            compared.add(cluster, truth["leader_epochs"], found)
    batches = _served_batches(clusters)
    for cluster in CLUSTER_NAMES:
        for place, truths in iter_served_records(cluster):
            bases, epochs = batches[place]
            at = np.searchsorted(bases, [each["o"] for each in truths], side="right") - 1
            for truth, epoch in zip(truths, epochs[at].tolist(), strict=True):
                compared.add(cluster, truth["le"], epoch)
    return compared


def _served_batches(clusters: Warehouse) -> dict[Place, tuple[np.ndarray, np.ndarray]]:
    """Base offsets and leader epochs of the batches that are served, by partition."""
    served = clusters.read(SEGMENTS).where("served_build_number IS NOT NULL")
    served = served.select(
        "segment_id", "served_from_offset", "served_to_offset", F.col("served_build_number").alias("build_number")
    )
    batches = clusters.read(OFFSET_INDEX).join(served, ["segment_id", "build_number"], how="inner")
    batches = batches.where("last_offset >= served_from_offset AND base_offset <= served_to_offset")
    rows = batches.select("topic", "partition", "base_offset", "leader_epoch").toPandas()
    return {
        (str(topic), int(str(partition))): (each["base_offset"].to_numpy(), each["leader_epoch"].to_numpy())
        for (topic, partition), each in rows.sort_values("base_offset").groupby(["topic", "partition"])
    }


def compare_events(clusters: Warehouse) -> Compared:
    """Every event of the metadata topic is the one that Kafka's own class reads."""
    compared, numbers = Compared(), metadata_partitions()
    names = "segment_id", "state", "broker_id", "event_timestamp_ms", "size_bytes"
    rows = {
        (row["metadata_partition"], row["metadata_offset"]): tuple(row[name] for name in names)
        for row in rows_in(clusters, SEGMENT_EVENTS)
    }
    for cluster, truth in _true_lines("rlmm-events"):
        wanted = tuple(truth.get(name) for name in ("segment_id", "state", "broker", "event_ts", "size"))
        compared.add(cluster, wanted, rows.pop((numbers[cluster, truth["mp"]], truth["mo"])))
    compared.wrong += [("", None, row) for row in rows.values()]
    return compared


def compare_aborted_transactions(clusters: Warehouse) -> Compared:
    """Every aborted transaction of every segment is the one that Kafka's own class reads."""
    compared, names = Compared(), ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    rows = {
        (row["segment_id"], row["last_offset"]): tuple(row[name] for name in names)
        for row in rows_in(clusters, TXN_INDEX)
    }
    for cluster, truth in _true_lines("segments"):
        for entry in truth.get("aborted", ()):
            wanted = tuple(entry[name] for name in ("pid", "first", "last", "lso"))
            compared.add(cluster, wanted, rows.pop((truth["segment_id"], entry["last"]), None))
    compared.wrong += [("", None, row) for row in rows.values()]
    return compared


def compare_records(level: IsolationLevel) -> Callable[[Warehouse], Compared]:
    """Every archived record is the one that a consumer got; readers of committed ones stop at the stable offset."""

    def compare(clusters: Warehouse) -> Compared:
        compared, archive = Compared(), Path(clusters.uri).parent / "archive"
        is_committed = level is IsolationLevel.READ_COMMITTED
        options = {"subscribePattern": ".*", "includeHeaders": True, "failOnDataLoss": False}
        found = read(clusters, archive, kafka_isolation_level=level.value, **options)
        rows: dict[Place, list[Line]] = {}
        for row in found.rows.to_pylist():
            rows.setdefault((row["topic"], row["partition"]), []).append(row)
        stops, refused = stable_offsets(clusters), refused_offsets()
        for cluster in CLUSTER_NAMES:
            for place, truths in iter_served_records(cluster):
                stop, refusals = stops.get(place, _NO_STOP), refused[place]
                wanted = [each for each in truths if not is_committed or (each["rc"] and each["o"] < stop)]
                of_place = {row["offset"]: row for row in rows.pop(place, [])}
                for offset in refusals:
                    compared.add(cluster, (place, offset), (place, of_place.pop(offset, {}).get("offset")))
                for truth, row in zip(of_truth(wanted), as_truth([*of_place.values()], wanted), strict=True):
                    compared.add(cluster, truth, row)
        compared.wrong += [("", None, place) for place in rows]
        return compared

    return compare


def iter_served_records(cluster: str) -> Iterator[tuple[Place, list[Line]]]:
    """Of every partition, the archived records that consumers got, without those of `NEVER_ARCHIVED`."""
    for place, records in iter_true_records(cluster):
        yield place, [each for each in records if each["o"] not in NEVER_ARCHIVED.get(place, ())]


def refused_offsets() -> dict[Place, list[int]]:
    """Of every partition, archived offsets that consumers of the cluster are refused, and that we give.

    Kafka 3.6.2 believes after a restart that they are local, though the local segments are gone.
    """
    refused: dict[Place, list[int]] = {}
    for _, each in _true_lines("partitions"):
        place = each["topic"], each["partition"]
        archived = (offset for offset in each.get("refused", ()) if offset <= each["archive_end"])
        refused[place] = [offset for offset in archived if offset not in NEVER_ARCHIVED.get(place, ())]
    return refused


def stable_offsets(clusters: Warehouse) -> dict[Place, int]:
    """Where readers of committed records stop, of partitions whose archive ends in an open transaction."""
    return {
        (row["topic"], row["partition"]): row["stable_offset"]
        for row in rows_in(clusters, PARTITION_METADATA)
        if row["stable_offset"] is not None and row["stable_offset"] <= row["latest_tiered_offset"]
    }


def compare_times(level: IsolationLevel) -> Callable[[Warehouse], Compared]:
    """Every answer by timestamp that lies in the archive, by the exact rule and by the broker's.

    A committed answer behind the archive's stable offset depends on a marker that is not archived: it must be refused.
    """

    def compare(clusters: Warehouse) -> Compared:
        compared, asked, stops = Compared(), list(_true_lines("queries")), stable_offsets(clusters)
        name = "rc" if level is IsolationLevel.READ_COMMITTED else "ru"
        if level is IsolationLevel.READ_UNCOMMITTED:
            stops = {}
        served = (each for cluster in CLUSTER_NAMES for each in iter_served_records(cluster))
        exact = {place: records for place, records in served if place in NEVER_ARCHIVED}
        rows = [(each["topic"], each["partition"], each["ts"], -1, level.value) for _, each in asked]
        for is_compatible in (True, False):
            options = LookupOptions(broker_compatible=is_compatible)
            answers = list_offsets_in_no_hurry(clusters, requests_from_rows(rows), options).to_pylist()
            for (cluster, truth), answer in zip(asked, answers, strict=True):
                place = truth["topic"], truth["partition"]
                wanted = _true_answer(truth, name, stops.get(place, _NO_STOP))
                if place in exact and not is_compatible:
                    wanted = _first_at_or_after(exact[place], truth["ts"])
                compared.add(cluster, wanted, _answer(answer))
        return compared

    return compare


def _true_answer(truth: Line, name: str, stop: int) -> tuple[object, ...]:
    told: Line | None = truth[name]
    if not truth["archive"]:
        return ErrorCode.LOCAL_REQUIRED, None, None, None
    if told is None or told["offset"] >= stop:
        return ErrorCode.OPEN_TRANSACTION, None, None, None
    return ErrorCode.NONE, told["offset"], told["ts"], told["epoch"]


def _first_at_or_after(records: list[Line], timestamp_ms: int) -> tuple[object, ...]:
    """The exact rule's answer, where that is not the cluster's."""
    for each in records:
        if each["ts"] >= timestamp_ms:
            return ErrorCode.NONE, each["o"], each["ts"], each["le"]
    return ErrorCode.LOCAL_REQUIRED, None, None, None


def _answer(answer: Line) -> tuple[object, ...]:
    return answer["error_code"], answer["offset"], answer["offset_timestamp_ms"], answer["leader_epoch"]


def compare_special_timestamps(clusters: Warehouse) -> Compared:
    """The answers to `SPECIAL_TIMESTAMPS` are those of the cluster.

    The offset of earliest-pending-upload is not archived: its leader epoch, which a broker knows, may be a later one
    than that of the last offset that is.
    """
    asked = [
        (cluster, truth, special, truth[f"{name}_ru"])
        for cluster, truth in _true_lines("partitions")
        for special, name in SPECIAL_TIMESTAMPS.items()
        if truth[f"{name}_ru"] is not None
    ]
    requests = requests_from_rows([(truth["topic"], truth["partition"], int(each)) for _, truth, each, _ in asked])
    answers = list_offsets_in_no_hurry(clusters, requests).to_pylist()
    compared = Compared()
    for (cluster, truth, special, told), answer in zip(asked, answers, strict=True):
        about = truth["topic"], truth["partition"], special.name
        is_archived = special is not SpecialTimestamp.EARLIEST_PENDING_UPLOAD
        epoch = told["epoch"] if is_archived else truth["latest_tiered_ru"]["epoch"]
        wanted = *about, ErrorCode.NONE, told["offset"], epoch
        compared.add(cluster, wanted, (*about, answer["error_code"], answer["offset"], answer["leader_epoch"]))
    return compared


def compare_max_timestamps(clusters: Warehouse) -> Compared:
    """max-timestamp is the first of the latest archived records, while a broker looks at its local segments alone.

    Partitions with transactions are left out: their markers count, and no consumer gets them.
    """
    truths = {
        (cluster, place): max(records, key=lambda each: (each["ts"], -each["o"]))
        for cluster in CLUSTER_NAMES
        for place, records in iter_served_records(cluster)
        if shape_of(place[0]) != "transactions"
    }
    requests = requests_from_rows([(*place, int(SpecialTimestamp.MAX_TIMESTAMP)) for _, place in truths])
    answers = list_offsets_in_no_hurry(clusters, requests).to_pylist()
    compared = Compared()
    for ((cluster, _), truth), answer in zip(truths.items(), answers, strict=True):
        compared.add(cluster, (ErrorCode.NONE, truth["o"], truth["ts"], truth["le"]), _answer(answer))
    return compared


COMPARISONS: dict[str, Callable[[Warehouse], Compared]] = {
    "ListOffsets by time, read_uncommitted": compare_times(IsolationLevel.READ_UNCOMMITTED),
    "ListOffsets by time, read_committed": compare_times(IsolationLevel.READ_COMMITTED),
    "earliest, latest-tiered, earliest-pending-upload": compare_special_timestamps,
    "max-timestamp": compare_max_timestamps,
    "records, read_uncommitted": compare_records(IsolationLevel.READ_UNCOMMITTED),
    "records, read_committed": compare_records(IsolationLevel.READ_COMMITTED),
    "aborted transactions": compare_aborted_transactions,
    "leader epochs of segments and records": compare_leader_epochs,
    "segments": compare_segments,
    "events of the metadata topic": compare_events,
}
"""What is compared, in the words of docs/reference/versions.md."""
