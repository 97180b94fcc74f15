"""Test that two jobs never write one warehouse on S3 at once, and that a job with an old lease writes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.indexing.run_log import recorded_run
from coldlog.runtime.settings import MaintenanceSettings
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tables.leases.lease_objects import FOLDER
from coldlog.tables.leases.warehouse_lease import LeaseHeldError, LeaseLostError, WarehouseLease, take_lease
from coldlog.tables.leases.warehouse_lock import writing
from coldlog.upkeep.maintain import maintain_table
from counts.spark_work import counting_work
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import ACCESS_KEY, SECRET_KEY, Bucket


def _take(bucket: Bucket, *, ttl_s: float = 60.0, monotonic: Callable[[], float] = lambda: 0.0) -> WarehouseLease:
    return take_lease(bucket.uri("wh"), bucket.name, "wh", ttl_s=ttl_s, monotonic=monotonic)


def _take_over(bucket: Bucket) -> WarehouseLease:
    """As if the previous lease had not been renewed in time."""
    lease = _take(bucket, ttl_s=-1)
    lease.ttl_s = 60
    return lease


def test_second_writer_is_refused_with_the_name_of_the_first(bucket: Bucket) -> None:
    uri = bucket.uri("wh")
    with writing(uri) as first:
        assert first is not None
        with pytest.raises(
            LeaseHeldError, match=r"another job \(.*process \d+.*is writing.*one at a time.*wait \d+ s for its lease"
        ):
            _take(bucket)
    second = _take(bucket)
    assert (second.was_abandoned, second.number) == (False, first.number + 1)


def test_a_lease_that_is_not_renewed_ends_and_its_holder_gets_an_error(bucket: Bucket) -> None:
    late = _take(bucket)
    late.confirm()
    taken = _take_over(bucket)
    assert taken.was_abandoned
    taken.confirm()
    with pytest.raises(LeaseLostError, match=f"lease {late.number} was taken over by lease {taken.number} .*run it"):
        late.confirm()
    # What it still puts is under a number that counts no more.
    late.renew()
    taken.confirm()


def test_a_writer_that_was_paused_longer_than_its_lease_stops(bucket: Bucket) -> None:
    clock = [100.0]
    lease = _take(bucket, monotonic=lambda: clock[0])
    clock[0] += 59
    lease.require()
    lease.renew()
    clock[0] += 59
    lease.require()
    clock[0] += 2
    with pytest.raises(LeaseLostError, match="not renewed for 60 s"):
        lease.require()


def test_a_failed_renewal_is_repeated_and_reported_if_none_succeeds(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    clock = [100.0]
    lease = _take(bucket, monotonic=lambda: clock[0])
    s3_proxy.strikes = lambda request: request.method == "PUT"
    s3_proxy.faults = [Fault(status=403, code="AccessDenied")]
    clock[0] += 50
    lease.renew()
    lease.require()
    # The next turn is in time.
    lease.renew()
    clock[0] += 50
    lease.require()
    s3_proxy.faults = [Fault(status=400, code="ExpiredToken")]
    lease.renew()
    clock[0] += 11
    with pytest.raises(LeaseLostError, match=r"not renewed for 60 s \(.*have expired .ExpiredToken."):
        lease.require()


def test_others_may_write_at_once_after_a_failed_writer_whose_late_commits_are_blocked(bucket: Bucket) -> None:
    with pytest.raises(RuntimeError, match="in the middle"), writing(bucket.uri("wh")):
        raise RuntimeError("in the middle")
    assert _take(bucket).was_abandoned


def test_the_newest_of_many_leases_counts_and_old_ones_are_removed(bucket: Bucket) -> None:
    numbers = []
    for _ in range(25):
        with writing(bucket.uri("wh")) as lease:
            assert lease is not None
            numbers.append(lease.number)
    assert numbers == list(range(numbers[0], numbers[0] + 25))
    assert _take(bucket).number == numbers[-1] + 1
    left = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=f"wh/{FOLDER}/")["Contents"]
    assert len(left) < 15


@pytest.mark.parametrize("kept", [0, 2], ids=["all", "the-newest"])
def test_a_commit_that_delta_skips_after_lost_leases_is_an_error(
    spark: SparkSession, tmp_path: Path, bucket: Bucket, kept: int
) -> None:
    def run(topic: str) -> None:
        lease = _take(bucket)
        warehouse = _open(spark, tmp_path, lease)
        if lease.was_abandoned:
            warehouse.fence()
        warehouse.append(LOG_START_OFFSETS, warehouse.local(LOG_START_OFFSETS, [_row(topic, 1)]))
        lease.release(is_finished=True)

    def forget_leases(kept: int) -> None:
        bucket.delete(*sorted(key for key in set(bucket.keys()) if f"/{FOLDER}/" in key)[kept:])

    for topic in ("a", "b", "c"):
        run(topic)
    forget_leases(kept)
    if kept:
        # The number goes on where the tables know later ones: told, and nothing is written.
        with pytest.raises(ColdlogError, match=rf"was skipped.*later writer than lease.*{FOLDER}.*delete everything"):
            run("later")
        forget_leases(0)
    run("d")
    told = _open(spark, tmp_path, _take(bucket))
    assert _log_starts(told).keys() == {"a", "b", "c", "d"}


def test_a_writer_whose_lease_was_replaced_by_one_of_the_same_number_gets_an_error(bucket: Bucket) -> None:
    late = _take(bucket)
    bucket.delete(*bucket.keys())
    other = _take(bucket)
    # As where the store's clock was set back.
    bucket.delete(*bucket.keys())
    other.number = late.number
    other.renew()
    other.confirm()
    with pytest.raises(LeaseLostError, match=f"lease {late.number} was taken over"):
        late.confirm()


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b'{"holder": 1, "state": 2, "counted_from": -1}'],
    ids=["empty", "list", "object", "null", "no-text", "nested", "other-types"],
)
def test_a_lease_that_cannot_be_read_counts_as_held_until_it_is_too_old(bucket: Bucket, content: bytes) -> None:
    number = _take(bucket).number
    names = {"1": b"", "9" * 20: b"", "note.txt": b"", f"{number + 1:020d}": content}
    bucket.put({f"wh/{FOLDER}/{name}": each for name, each in names.items()})
    with pytest.raises(
        LeaseHeldError, match="another job .unknown: its lease cannot be read. is writing.*for its lease to end"
    ):
        _take(bucket)
    taken = _take_over(bucket)
    assert (taken.number, taken.was_abandoned) == (number + 2, True)


def test_of_many_jobs_that_start_at_once_one_writes(bucket: Bucket) -> None:
    outcomes: list[int | None] = []
    together = threading.Barrier(8)

    def begin() -> None:
        together.wait()
        try:
            outcomes.append(_take(bucket).number)
        except LeaseHeldError:
            outcomes.append(None)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(None) == 7


def test_a_store_that_ignores_the_condition_is_refused(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    _take(bucket).release(is_finished=True)
    s3_proxy.strikes = lambda request: request.method == "PUT"
    s3_proxy.faults = [Fault(status=200), Fault(status=200)]
    with pytest.raises(UsageError, match="ignores If-None-Match.*use a store with conditional writes"):
        _take(bucket)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault(status=403, code="AccessDenied"), UsageError, "no permission to write.*s3:PutObject.*which credentials"),
        (Fault(status=404, code="NoSuchBucket"), UsageError, "no bucket.*correct s3://"),
        (Fault(status=400, code="ExpiredToken"), UsageError, "credentials for .* have expired .ExpiredToken."),
    ],
)
def test_a_refusal_of_the_store_is_reported_with_advice_and_without_secrets(
    bucket: Bucket, s3_proxy: S3Proxy, fault: Fault, error: type[Exception], words: str
) -> None:
    s3_proxy.faults = [fault]
    with pytest.raises(error, match=words) as refused:
        _take(bucket)
    told = repr(refused.getrepr(chain=True))
    assert SECRET_KEY not in told
    assert ACCESS_KEY not in told


def test_old_leases_that_may_not_be_deleted_are_reported_with_the_permission(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    for _ in range(9):
        _take(bucket).release(is_finished=True)
    s3_proxy.strikes = lambda request: request.method == "DELETE"
    s3_proxy.faults = [Fault(status=403, code="AccessDenied")]
    with pytest.raises(UsageError, match="s3:DeleteObject"):
        _take(bucket)


def test_a_store_that_is_down_is_a_retriable_error(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(RetriableError, match="got no answer"):
        _take(bucket)


def test_maintenance_whose_lease_has_ended_stops_before_the_next_table(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    clock = [0.0]
    warehouse = _open(spark, tmp_path, _take(bucket, monotonic=lambda: clock[0]))
    settings = MaintenanceSettings()
    maintain_table(warehouse, JOB_RUNS, settings)
    clock[0] += 61
    before = len(list((tmp_path / LOG_START_OFFSETS.name / "_delta_log").iterdir()))
    with pytest.raises(LeaseLostError, match="not renewed for 60 s"):
        maintain_table(warehouse, LOG_START_OFFSETS, settings)
    assert len(list((tmp_path / LOG_START_OFFSETS.name / "_delta_log").iterdir())) == before


def _open(spark: SparkSession, location: Path, lease: WarehouseLease) -> Warehouse:
    warehouse = Warehouse(spark=spark, uri=str(location), lease=lease)
    warehouse.create_missing()
    return warehouse


def _log_starts(warehouse: Warehouse) -> dict[str, int]:
    rows = warehouse.read(LOG_START_OFFSETS).select("topic", "log_start_offset").collect()
    return {row[0]: row[1] for row in rows}


def _row(topic: str, offset: int) -> dict[str, object]:
    return {"topic": topic, "partition": 0, "log_start_offset": offset}


def test_a_writer_that_wakes_after_another_commits_nothing(
    spark: SparkSession, warehouse: Path, bucket: Bucket
) -> None:
    late = _open(spark, warehouse, _take(bucket))
    late.append(LOG_START_OFFSETS, late.local(LOG_START_OFFSETS, [_row("before", 1)]))
    now = _open(spark, warehouse, _take_over(bucket))
    with counting_work(spark) as work:
        now.fence()
    assert (work.jobs, work.executions) == (0, 0)
    with pytest.raises(LeaseLostError):
        late.append(LOG_START_OFFSETS, late.local(LOG_START_OFFSETS, [_row("late", 1)]))
    with pytest.raises(LeaseLostError):
        late.merge(LOG_START_OFFSETS, late.local(LOG_START_OFFSETS, [_row("before", 2)]))
    with pytest.raises(LeaseLostError):
        late.delete_keys(LOG_START_OFFSETS, late.local(LOG_START_OFFSETS, [_row("before", 2)]))
    with pytest.raises(LeaseLostError), recorded_run(late, "late"):
        pass
    assert _log_starts(now) == {"before": 1}
    with recorded_run(now, "now"):
        assert [row["job"] for row in now.read(JOB_RUNS).collect()] == ["now"]
    now.merge(LOG_START_OFFSETS, now.local(LOG_START_OFFSETS, [_row("before", 3), _row("new", 1)]))
    now.delete_keys(LOG_START_OFFSETS, now.local(LOG_START_OFFSETS, [_row("new", 1)]))
    now.append(JOB_RUNS, now.local(JOB_RUNS, []))
    assert _log_starts(now) == {"before": 3}


def test_a_commit_in_progress_when_another_job_takes_over_is_not_made(
    spark: SparkSession, warehouse: Path, bucket: Bucket, tmp_path: Path
) -> None:
    late = _open(spark, warehouse, _take(bucket))
    begun, go = tmp_path / "begun", tmp_path / "go"

    def wait(topic: str) -> str:
        import time

        begun.touch()
        while not go.exists():
            time.sleep(0.05)
        return topic

    slow = late.local(LOG_START_OFFSETS, [_row("late", 1)]).withColumn(
        "topic", F.udf(wait, "string", useArrow=False)("topic")
    )
    failures: list[BaseException] = []

    def commit() -> None:
        try:
            late.append(LOG_START_OFFSETS, slow)
        except LeaseLostError as lost:
            failures.append(lost)

    thread = threading.Thread(target=commit)
    thread.start()
    while not begun.exists():
        thread.join(0.05)
    now = _open(spark, warehouse, _take_over(bucket))
    now.fence()
    go.touch()
    thread.join()
    assert len(failures) == 1
    assert _log_starts(now) == {}
