"""Test that a DataFrame goes on in a broker's log directory where the archive ends: each record once."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pyspark.sql.datasource as ds
import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, LOG_STARTS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment, build_segment
from coldlog.errors import RetriableError, UsageError
from coldlog.records.source.filters import RecordFilter
from coldlog.records.source.options import read_options
from coldlog.records.source.planning import open_reader, plan_reading
from coldlog.records.source.stream_positions import read_position
from coldlog.records.source.streaming import initial_position, latest_position, plan_micro_batch
from coldlog.tables.delta.warehouse import Warehouse
from contents.record_rows import Reading, consumed, moment, read
from servers.broker_tails import TAIL_MS, Tail, delete_segments_before, write_broker_tails

Place = tuple[str, int]
Tails = Mapping[Place, Tail]
ORDERS = ("orders", 0)
PAYMENTS = [("payments", number) for number in range(3)]
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tails]:
    directory = tmp_path_factory.mktemp("log_directory")
    return directory, write_broker_tails(directory, {"orders", "payments"})


@pytest.fixture
def directory(written: tuple[Path, Tails], tmp_path: Path) -> Path:
    """A copy of the directory, to be changed."""
    return shutil.copytree(written[0], tmp_path / "log_directory")


@pytest.fixture
def tails(written: tuple[Path, Tails]) -> Tails:
    return written[1]


def _read(
    uri: str,
    archive: Path,
    directory: Path,
    place: Place,
    *filters: ds.Filter,
    **more: object,
) -> Reading:
    given = {"assign": f'{{"{place[0]}":[{place[1]}]}}', "fetch.log_directory": directory, **more}
    return read(uri, archive, *filters, **given)


@pytest.mark.parametrize(("level", "is_overlapping"), [(UNCOMMITTED, True), (COMMITTED, False)])
def test_every_record_of_archive_and_directory_is_read_once(
    golden_uri: str, golden_archive: Path, directory: Path, tails: Tails, level: str, is_overlapping: bool
) -> None:
    """Transactions that are open where the archive ends are aborted or committed after it."""
    if not is_overlapping:
        delete_segments_before(directory, {place: tail.begin for place, tail in tails.items()})
    for place, tail in tails.items():
        for task_bytes in (1 << 30, 300):
            start = tail.begin - 200 if task_bytes == 300 else 0
            given = {"startingoffsets": f'{{"{place[0]}":{{"{place[1]}":{start}}}}}', "maxpartitionbytes": task_bytes}
            found = _read(golden_uri, golden_archive, directory, place, kafka_isolation_level=level, **given)
            whole = tail.whole_log(place, is_committed=level == COMMITTED)
            assert found.offsets() == [offset for offset in whole if offset >= start], (place, task_bytes)
        pieces = [task.local for task in found.tasks if task.local is not None]
        assert len(pieces) > 1
        assert pieces[0].bounds.from_offset == tail.begin
    assert sum(len(tail.fates) for tail in tails.values()) > 5


def test_offsets_below_the_archives_end_are_never_read_in_the_directory(
    golden_uri: str, golden_archive: Path, directory: Path, tails: Tails
) -> None:
    for path in directory.glob("*/0*.log"):
        topic, _, number = path.parent.name.rpartition("-")
        if int(path.stem) < tails[topic, int(number)].begin:
            path.write_bytes(b"damaged" * 9)
    for place, tail in tails.items():
        found = _read(golden_uri, golden_archive, directory, place, kafka_isolation_level=COMMITTED)
        assert found.offsets() == tail.whole_log(place, is_committed=True)


@pytest.mark.pushdown
def test_filters_and_options_cross_the_seam(
    golden_uri: str, golden_archive: Path, directory: Path, tails: Tails
) -> None:
    tail = tails[ORDERS]
    whole = tail.whole_log(ORDERS, is_committed=False)

    def orders(*filters: ds.Filter, **more: object) -> Reading:
        return _read(golden_uri, golden_archive, directory, ORDERS, *filters, **more)

    for low, high in [(-3, 3), (1, 2), (0, 100), (-9, -1)]:
        first, last = tail.begin + low, tail.begin + high
        bounds = ds.GreaterThanOrEqual(("offset",), first), ds.LessThanOrEqual(("offset",), last)
        found = orders(*bounds)
        assert found.offsets() == [offset for offset in whole if first <= offset <= last]
        assert found.left == []
    late = orders(ds.GreaterThanOrEqual(("timestamp",), moment(TAIL_MS + tail.begin + 7)))
    assert late.offsets() == [offset for offset in tail.offsets if offset >= tail.begin + 7]
    assert late.bytes_read < 500, "not the whole directory"
    assert orders(ds.LessThan(("timestamp",), moment(TAIL_MS))).offsets() == whole[: -len(tail.offsets)]
    between = {"startingTimestamp": TAIL_MS + tail.begin + 3, "endingTimestamp": TAIL_MS + tail.begin + 11}
    found = orders(**{name.lower(): value for name, value in between.items()})
    assert found.offsets() == [offset for offset in tail.offsets if 3 <= offset - tail.begin < 11]
    ends = {
        "startingoffsets": f'{{"orders":{{"0":{tail.begin - 2}}}}}',
        "endingoffsets": f'{{"orders":{{"0":{tail.begin + 2}}}}}',
    }
    assert orders(**ends).offsets() == list(range(tail.begin - 2, tail.begin + 2))
    ends["endingoffsets"] = f'{{"orders":{{"0":{tail.end + 2}}}}}'
    with pytest.raises(UsageError, match=rf"{tail.end} to {tail.end + 1} are not in the log yet; the archive and the"):
        orders(**ends)


def test_offsets_that_left_the_directory_and_are_not_indexed_are_data_loss(
    golden_uri: str, golden_archive: Path, directory: Path, tails: Tails
) -> None:
    delete_segments_before(directory, {place: tail.active for place, tail in tails.items()})
    for place in PAYMENTS[:1]:
        tail = tails[place]
        for level in (UNCOMMITTED, COMMITTED):
            with pytest.raises(UsageError, match=f"{tail.begin} to {tail.active - 1} left the log directory"):
                _read(golden_uri, golden_archive, directory, place, kafka_isolation_level=level)
            found = _read(
                golden_uri, golden_archive, directory, place, kafka_isolation_level=level, failondataloss=False
            ).offsets()
            alone = read(golden_uri, golden_archive, assign='{"payments":[0]}', kafka_isolation_level=level)
            later = tail.committed if level == COMMITTED else tail.offsets
            assert found == [*alone.offsets(), *(offset for offset in later if offset >= tail.active)]
        with pytest.raises(UsageError, match="may belong to a transaction that was aborted"):
            _read(golden_uri, golden_archive, directory, place, kafka_isolation_level=COMMITTED)


def test_times_of_archived_records_are_found_if_the_directory_is_behind_the_archive(
    golden_uri: str, golden_archive: Path, directory: Path
) -> None:
    """The directory may be a copy, a follower's, or that of a broker whose last checkpoint is older."""
    archived = [(row["ts"], row["o"]) for row in consumed(*ORDERS)]
    timestamp_ms = max(archived)[0]
    first = min(offset for found_ms, offset in archived if found_ms >= timestamp_ms)
    write_offset_checkpoint(directory / HIGH_WATERMARKS, {ORDERS: first})
    for level in (UNCOMMITTED, COMMITTED):
        given = {"kafka_isolation_level": level}
        late = _read(golden_uri, golden_archive, directory, ORDERS, startingtimestamp=timestamp_ms, **given)
        assert late.offsets() == [offset for _, offset in archived if offset >= first]
        early = _read(golden_uri, golden_archive, directory, ORDERS, endingtimestamp=timestamp_ms, **given)
        assert early.offsets() == [offset for _, offset in archived if offset < first]


def test_times_after_the_archive_are_a_loss_if_their_records_may_have_left_the_directory(
    golden_uri: str, golden_archive: Path, directory: Path, tails: Tails
) -> None:
    tail = tails[ORDERS]
    delete_segments_before(directory, {ORDERS: tail.active})
    late = {"startingtimestamp": TAIL_MS + tail.begin}
    lost = rf"{tail.begin} to {tail.active - 1} of orders-0, which may have .* run run_pipeline; failOnDataLoss=false"
    with pytest.raises(UsageError, match=lost):
        _read(golden_uri, golden_archive, directory, ORDERS, **late)
    found = _read(golden_uri, golden_archive, directory, ORDERS, failondataloss=False, **late)
    assert found.offsets() == [offset for offset in tail.offsets if offset >= tail.active]
    early = _read(golden_uri, golden_archive, directory, ORDERS, endingtimestamp=1)
    assert early.offsets() == [], "the archive answers for its times"


def test_log_start_of_brokers_hides_no_archived_record_and_is_a_loss_above_the_archives_end(
    golden_uri: str, golden_archive: Path, directory: Path, tails: Tails
) -> None:
    """Brokers that do not tier delete by their own retention."""
    tail = tails[ORDERS]
    whole = tail.whole_log(ORDERS, is_committed=False)
    for log_start in (tail.begin - 100, tail.begin):
        write_offset_checkpoint(directory / LOG_STARTS, {ORDERS: log_start})
        assert _read(golden_uri, golden_archive, directory, ORDERS).offsets() == whole
    delete_segments_before(directory, {ORDERS: tail.active})
    write_offset_checkpoint(directory / LOG_STARTS, {ORDERS: tail.active})
    with pytest.raises(UsageError, match=f"{tail.begin} to {tail.active - 1} left the log directory"):
        _read(golden_uri, golden_archive, directory, ORDERS)
    found = _read(golden_uri, golden_archive, directory, ORDERS, failondataloss=False).offsets()
    assert found == [offset for offset in whole if not tail.begin <= offset < tail.active]


def test_records_of_a_topic_that_was_created_again_are_not_taken_for_the_archives(
    golden_uri: str, golden_archive: Path, directory: Path, tails: Tails
) -> None:
    (directory / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {'B' * 21}A\n")
    with pytest.raises(UsageError, match="another topic orders .* created again since the index was built"):
        _read(golden_uri, golden_archive, directory, ORDERS)
    found = _read(golden_uri, golden_archive, directory, ORDERS, failondataloss=False)
    assert found.offsets() == list(range(tails[ORDERS].begin))


def test_what_is_written_while_a_query_runs_is_left_to_the_next(
    golden_uri: str, golden_archive: Path, directory: Path, tails: Tails
) -> None:
    tail = tails[ORDERS]
    options = {"warehouse.uri": golden_uri, "archive.uri": str(golden_archive), "fetch.log_directory": str(directory)}
    asked = read_options({**options, "assign": '{"orders":[0]}', "columns": "offset"})

    def plan_and_write(begin: int) -> tuple[list[int], list[int]]:
        tasks, reader = plan_reading(asked, RecordFilter()), open_reader(asked, lambda _: None)
        added = Batch(base_offset=begin, records=(Record(timestamp_ms=2**43, value=b"later"),), leader_epoch=90)
        active = directory / "orders-0" / f"{tail.active:020d}.log"
        active.write_bytes(active.read_bytes() + build_segment([added]))
        write_offset_checkpoint(directory / HIGH_WATERMARKS, {("orders", 0): begin + 1})
        batches = [batch for task in tasks for batch in reader.iter_rows(task)]
        return [number for batch in batches for number in batch["offset"].to_pylist()], [begin]

    whole = tail.whole_log(ORDERS, is_committed=False)
    assert plan_and_write(tail.end)[0] == whole
    assert plan_and_write(tail.end + 1)[0] == [*whole, tail.end]


@pytest.mark.parametrize("change", ["retention", "other broker", "other topic", "other host"])
def test_task_refuses_a_directory_that_is_not_the_drivers(
    golden_uri: str, golden_archive: Path, directory: Path, tails: Tails, change: str
) -> None:
    options = {"warehouse.uri": golden_uri, "archive.uri": str(golden_archive), "fetch.log_directory": str(directory)}
    asked = read_options({**options, "assign": '{"orders":[0]}'})
    tasks, reader = plan_reading(asked, RecordFilter()), open_reader(asked, lambda _: None)
    error: type[Exception] = RetriableError
    match change:
        case "retention":
            delete_segments_before(directory, {ORDERS: tails[ORDERS].active})
        case "other broker":
            log = directory / "orders-0" / f"{tails[ORDERS].active:020d}.log"
            log.write_bytes(log.read_bytes()[:-80])
        case "other topic":
            (directory / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {'B' * 21}A\n")
        case _:
            shutil.rmtree(directory)
            error = UsageError
    message = "fetch.log_directory cannot be read on" if error is UsageError else "which the driver planned to read"
    with pytest.raises(error, match=message):
        list(reader.iter_rows(tasks[-1]))


def test_partitions_that_only_the_directory_has_are_read_but_no_internal_topics_by_a_pattern(
    golden_uri: str, golden_archive: Path, directory: Path
) -> None:
    segment = Segment(batches=(Batch(base_offset=0, records=(Record(timestamp_ms=5, value=b"v"),)),))
    for topic in ("orders-new", "__consumer_offsets", "__cluster_metadata"):
        write_partition(directory, topic, 0, [segment])
    places = {"fetch.log_directory": directory}
    found = read(golden_uri, golden_archive, subscribepattern="orders-new|__.*", **places)
    assert [(row["topic"], row["offset"]) for row in found.rows.to_pylist()] == [("orders-new", 0)]
    assert read(golden_uri, golden_archive, subscribe="__consumer_offsets", **places).offsets() == [0]


def test_past_index_and_the_directory_of_now_are_refused_together(
    golden_uri: str, golden_archive: Path, directory: Path
) -> None:
    with pytest.raises(UsageError, match=r"unset one of them"):
        _read(golden_uri, golden_archive, directory, ORDERS, **{"warehouse.as_of": "2099-01-01T00:00:00Z"})


def test_stream_reads_on_in_the_directory_each_record_once(
    golden_uri: str, golden_archive: Path, directory: Path, tails: Tails
) -> None:
    write_offset_checkpoint(directory / HIGH_WATERMARKS, {place: tail.active for place, tail in tails.items()})
    options = {"warehouse.uri": golden_uri, "archive.uri": str(golden_archive), "fetch.log_directory": str(directory)}
    given = {**options, "subscribe": "payments", "startingoffsets": "earliest", "columns": "partition,offset"}
    asked = read_options({**given, "kafka.isolation.level": COMMITTED}, is_stream=True)
    position, reader = initial_position(asked), open_reader(asked, lambda _: None)
    found: dict[int, list[int]] = {number: [] for _, number in PAYMENTS}
    for high_watermark in ("active", "end", "end"):
        ends = {place: getattr(tail, high_watermark) for place, tail in tails.items()}
        write_offset_checkpoint(directory / HIGH_WATERMARKS, ends)
        reached = latest_position(asked, position)
        for task in plan_micro_batch(asked, position, reached):
            for batch in reader.iter_rows(task):
                found[task.partition] += batch["offset"].to_pylist()
        position = reached
    assert read_position(position).offsets == {place: tails[place].stable for place in PAYMENTS}
    for place in PAYMENTS:
        assert found[place[1]] == tails[place].whole_log(place, is_committed=True)


def test_spark_reads_the_whole_log(golden: Warehouse, golden_archive: Path, directory: Path, tails: Tails) -> None:
    records = (
        golden.spark.read.format("coldlog")
        .options(**{"warehouse.uri": golden.uri, "archive.uri": str(golden_archive)})
        .options(**{"fetch.log_directory": str(directory), "kafka.isolation.level": COMMITTED})
        .option("subscribe", "payments")
    )
    counted = records.load().groupBy("partition").count().collect()
    expected = {place[1]: len(tails[place].whole_log(place, is_committed=True)) for place in PAYMENTS}
    assert {row["partition"]: row["count"] for row in counted} == expected
