"""Does an endpoint serve on, and lose nothing, whatever strangers send?

`make test-strangers SEED=7 REQUESTS=1000000` sends other requests, more of them, and a store hangs for a minute. With
SEGMENT_EVERY_S=60 a segment is archived each minute meanwhile, and `coldlog run` indexes it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import pytest

from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from endpoint.conftest import Endpoint, serving
from endpoint.support.raw_client import connected, fetch, list_offsets
from endpoint.support.sound_clients import ASKED, OF_TABLES, SoundClients, beside, sound_clients
from endpoint.test_metrics import metric_samples, metrics_address
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import Bucket

HANG_S = float(os.environ.get("HANG_S", "2"))
SEGMENT_EVERY_S = float(os.environ.get("SEGMENT_EVERY_S", "0"))
"""0: the archive stays as it is."""
SEED, REQUESTS = int(os.environ.get("SEED", "28")), int(os.environ.get("REQUESTS", "4000"))
_TESTS = Path(__file__).parents[2]
_QUIET_S, _BACK_S = 2.0, 60.0
_CLIENTS_BEFORE, _READERS, _THREADS = 12, 6, 4
_MOST_MORE = 20
"""Threads and descriptors: pools grow when they are used, up to their settings."""
_MOST_GROWTH = 200 << 20
"""Bytes of memory: the allocator keeps some, and the groups that strangers made keep their offsets."""
_MOST_END_S = 0.3
"""Seconds of a processor. On a busy machine they take many times as long."""
_UNEXPECTED = ("error of coldlog", "Traceback", "never retrieved", "was destroyed")


@dataclass(frozen=True, slots=True)
class _Use:
    """What the process holds."""

    descriptors: int
    threads: int
    memory: int


def _use(endpoint: Endpoint) -> _Use:
    process = psutil.Process(endpoint.process.pid)
    return _Use(process.num_fds(), process.num_threads(), process.memory_info().rss)


def _processor_s() -> float:
    """What programs that have ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait_until_quiet(address: str) -> dict[tuple[str, ...], float]:
    """Wait until nobody is connected and nothing is under way."""
    deadline = time.monotonic() + _BACK_S
    while True:
        samples = metric_samples(address)
        under_way = {
            name: value
            for name, value in samples.items()
            if name[0] in ("connections", "fetches_waiting", "list_offsets_waiting", "queue_size", "hanging_threads")
            or (name[0] == "groups" and name[1] != "Empty")
        }
        is_idle = all(value == 1 for name, value in samples.items() if name[0] == "idle_ratio")
        if is_idle and not any(under_way.values()):
            return samples
        assert time.monotonic() < deadline, f"still under way: {under_way}"
        time.sleep(0.1)


def _answered(samples: dict[tuple[str, ...], float]) -> float:
    return sum(value for name, value in samples.items() if name[0] == "request_seconds_count")


@dataclass(slots=True)
class _GrowingArchive:
    """The sample and a topic of its own, which gets a segment from time to time; `seconds` are those that it took from
    the end of the run that indexed the segment until the endpoint had its records."""

    folder: Path
    warehouse: Path
    segments: list[Segment] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add_segment(self) -> None:
        """Write it and index it."""
        first, at = 10 * len(self.segments), 1_700_000_000_000
        records = tuple(Record(timestamp_ms=at + first + number, value=b"v") for number in range(10))
        self.segments.append(Segment(batches=(Batch(base_offset=first, records=records),)))
        write_archive(self.folder, {TopicPartition(topic="growing", partition=0): self.segments})
        command = [sys.executable, "-m", "coldlog", "run", "--quiet", "-w", str(self.warehouse)]
        ran = subprocess.run(
            [*command, "--set", f"archive.uri={self.folder}"], capture_output=True, text=True, check=False, timeout=600
        )
        if ran.returncode:
            self.wrong.append(f"run {len(self.segments)} ended with {ran.returncode}: {ran.stderr}")

    def grow(self, port: int, has_ended: threading.Event) -> None:
        """Add segments until the event, at least one."""
        while True:
            due = time.monotonic() + SEGMENT_EVERY_S
            self.add_segment()
            self._await_newest(port)
            if has_ended.wait(max(0.0, due - time.monotonic())):
                return

    def _await_newest(self, port: int) -> None:
        began = time.monotonic()
        end = 10 * len(self.segments)
        with connected(port) as client:
            while time.monotonic() - began < _BACK_S:
                latest = client.ask(2, 11, list_offsets([("growing", 0, -1)])).topics[0].partitions[0].offset
                if latest == end:
                    answer = client.ask(1, 12, fetch(12, [("growing", 0, end - 10)]))
                    if not answer.responses[0].partitions[0].records:
                        self.wrong.append(f"no records at offset {end - 10}")
                    self.seconds.append(time.monotonic() - began)
                    return
                time.sleep(0.5)
        self.wrong.append(f"offset {end} did not show within {_BACK_S:g} s")


def _grown_from(archive: Path, warehouse: str, folder: Path) -> _GrowingArchive:
    """The sample's archive by links, its tables copied, and the first segment."""
    tier = folder / "archive" / ARCHIVE_FOLDER
    tier.mkdir(parents=True)
    for log in (archive / ARCHIVE_FOLDER).iterdir():
        shutil.copytree(log, tier / log.name)
    shutil.copytree(warehouse, folder / "warehouse")
    grown = _GrowingArchive(folder / "archive", folder / "warehouse")
    grown.add_segment()
    return grown


def _show(title: str, sound: SoundClients) -> None:
    print(
        f"{title}: {len(sound.seconds):,} sound answers, p50 {sound.quantile_ms(50):.1f} ms, "
        f"p99 {sound.quantile_ms(99):.1f} ms, longest {1000 * max(sound.seconds):.0f} ms"
    )


@pytest.mark.timeout(0)
def test_strangers_leave_nothing_behind_and_hold_nobody_up(
    golden_uri: str, golden_archive: Path, tmp_path: Path
) -> None:
    grown = _grown_from(golden_archive, golden_uri, tmp_path) if SEGMENT_EVERY_S else None
    places = (golden_uri, golden_archive) if grown is None else (str(grown.warehouse), grown.folder)
    with serving(tmp_path / "notes", *places, "serve.metrics=127.0.0.1:0") as endpoint:
        address, sound = metrics_address(endpoint), sound_clients(endpoint.port)
        with sound.asking(_CLIENTS_BEFORE):  # So that pools have their threads, and these their files.
            time.sleep(_QUIET_S)
        sound.seconds.clear()
        with sound.asking():
            time.sleep(_QUIET_S)
        _show("without strangers", sound)
        earlier = _answered(_wait_until_quiet(address))
        before = _use(endpoint)
        meanwhile = SoundClients(endpoint.port, sound.asked, sound.truth)
        command = [sys.executable, "-m", "endpoint.support.strangers", *map(str, (endpoint.port, SEED, REQUESTS))]
        environment = {**os.environ, "PYTHONPATH": f"{_TESTS}{os.pathsep}{_TESTS.parent / 'lib'}"}
        began = time.monotonic()
        with meanwhile.asking(), nullcontext() if grown is None else beside(partial(grown.grow, endpoint.port)):
            ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        seconds, sent = time.monotonic() - began, json.loads(ran.stdout)
        _show("with strangers", meanwhile)
        samples = _wait_until_quiet(address)
        after = _use(endpoint)
        answered = _answered(samples)
        print(
            f"seed {SEED}: {sent['requests']:,} requests of strangers on {sent['connections']:,} connections in "
            f"{seconds:.0f} s; {answered - earlier - len(meanwhile.seconds):,.0f} answered, "
            f"{samples['malformed_requests_total',]:,.0f} connections ended; memory {before.memory >> 20} to "
            f"{after.memory >> 20} MB, {before.threads} to {after.threads} threads, {before.descriptors} to "
            f"{after.descriptors} descriptors"
        )
        if grown is not None:
            print(f"{len(grown.seconds)} segments archived meanwhile, shown after {max(grown.seconds):.1f} s at most")
            assert grown.wrong == []
        said = endpoint.said()
        assert [line for line in said.splitlines() if any(each in line for each in _UNEXPECTED)] == []
        assert sound.wrong + meanwhile.wrong == []
        assert endpoint.process.poll() is None
        # Each run adds files to some tables. Readers keep them open.
        files = 0 if grown is None else 2 * len(grown.segments)
        assert after.descriptors <= before.descriptors + _MOST_MORE + files
        assert after.threads <= before.threads + _MOST_MORE
        assert after.memory <= before.memory + _MOST_GROWTH
        began = _processor_s() + sum(psutil.Process(endpoint.process.pid).cpu_times()[:2])
        assert endpoint.end() == 0
        assert _processor_s() - began < _MOST_END_S, "its end does not wait for a busy machine"


@pytest.mark.timeout(0)
def test_an_archive_that_hangs_holds_up_no_question_and_all_is_back_after_it(
    golden_uri: str, golden_archive: Path, bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    """Readers ask for records all the time. The threads that read the archive are fewer than they are."""
    tier = golden_archive / "kafka-tiered-storage"
    for log in (*tier.glob("payments-*"), *tier.glob("late.events-*")):
        bucket.put_directory(log, f"archive/{tier.name}/{log.name}")
    settings = "serve.metrics=127.0.0.1:0", f"remote.log.reader.threads={_THREADS}"
    with serving(tmp_path / "notes", golden_uri, bucket.uri("archive"), *settings) as endpoint:
        address, sound, records = metrics_address(endpoint), sound_clients(endpoint.port, OF_TABLES), ASKED[4:]
        readers = sound_clients(endpoint.port, records)
        with sound.asking(), readers.asking(_READERS):
            time.sleep(_QUIET_S)
        assert readers.wrong == []
        _show("while the store answers", sound)
        _wait_until_quiet(address)
        before, meanwhile = _use(endpoint), SoundClients(endpoint.port, sound.asked, sound.truth)
        s3_proxy.strikes = lambda request: request.is_get
        s3_proxy.faults = [Fault(hangs=True)] * 100_000
        with meanwhile.asking(), readers.asking(_READERS):
            time.sleep(HANG_S)
            hanging = 100_000 - len(s3_proxy.faults)
            s3_proxy.begin()
        _show(f"while it hangs for {HANG_S:g} s", meanwhile)
        _wait_until_quiet(address)
        after = _use(endpoint)
        print(f"before {before}, after {after}")
        assert hanging >= _THREADS, "reads hang"
        assert sound_clients(endpoint.port, records).truth == readers.truth
        assert [line for line in endpoint.said().splitlines() if any(each in line for each in _UNEXPECTED)] == []
        assert sound.wrong + meanwhile.wrong == []
        assert after.descriptors <= before.descriptors + _MOST_MORE
        assert after.threads <= before.threads + _MOST_MORE
