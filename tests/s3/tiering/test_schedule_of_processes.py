"""Test that processes, and runs whose tables are in a bucket, share the schedule table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deltalake import DeltaTable

from coldlog.model.ids import TopicIdPartition
from coldlog.runtime.installation import ROOT
from coldlog.tiering.tier_schedule import ScheduleOptions, TierSchedule, TierTask, tier_schedule_table
from servers.s3_server import Bucket
from virtual_clock import VirtualClock

A, B, C = (TopicIdPartition(topic=name, partition=0, topic_id="A" * 22) for name in "abc")
COPY = TierTask.COPY

RACER = """
import os, sys, time
from coldlog.model.ids import TopicIdPartition
from coldlog.tiering.system_clock import SystemClock
from coldlog.tiering.tier_schedule import ScheduleOptions, TierSchedule, TierTask, tier_schedule_table

warehouse, marks, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
wanted = {TopicIdPartition(topic="t", partition=each, topic_id="A" * 22) for each in range(number * 2, number * 2 + 5)}
options = ScheduleOptions(holder=str(os.getpid()), broker_id=number, process_interval_ms=1, retry_interval_ms=1)
schedule, had, tries = TierSchedule(tier_schedule_table(warehouse), SystemClock(), options), 0, 0
while tries < 25 or had <= 10:  # on a busy machine one has nothing until the others are done
    tries += 1
    leases = schedule.take_due(TierTask.COPY, wanted)
    for partition in leases.partitions:
        mark = f"{marks}/{partition.partition}"
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        had += 1
    for partition in leases.partitions:
        leases.require(partition)
        os.unlink(f"{marks}/{partition.partition}")
        leases.end(partition, None)
    leases.close()
"""


def test_processes_that_race_for_partitions_never_hold_one_together(tmp_path: Path) -> None:
    """A process that holds a partition creates a file that must not exist yet."""
    marks, environment = tmp_path / "marks", {"PYTHONPATH": str(ROOT / "lib")}
    marks.mkdir()
    command = [sys.executable, "-c", RACER, str(tmp_path / "warehouse"), str(marks)]
    started = [
        subprocess.Popen([*command, str(number)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for number in (0, 1, 1)
    ]
    outputs = [each.communicate() for each in started]
    assert [each.returncode for each in started] == [0, 0, 0], outputs
    assert DeltaTable(tmp_path / "warehouse" / "tier_schedule").version() > 50


READER = """
import os, sys
from pathlib import Path
from coldlog.tiering.tier_schedule import tier_schedule_table

def count_threads():
    # Those of delta-rs and of the allocators have names of their own; Arrow's have that of the process.
    names = [Path("/proc/self/task", each, "comm").read_text() for each in os.listdir("/proc/self/task")]
    return names.count(Path("/proc/self/comm").read_text())

before = count_threads()
for _ in range(5):
    assert tier_schedule_table(sys.argv[1]).read()
print(before, count_threads())
"""


def test_process_that_reads_the_table_gets_no_threads_of_arrow_and_ends_without_an_error(tmp_path: Path) -> None:
    """With rows from Arrow's threads, one process in 25 was aborted if it ended right after that."""
    schedule = TierSchedule(tier_schedule_table(str(tmp_path)), VirtualClock(), ScheduleOptions(holder="one"))
    schedule.take_due(COPY, {A}).close()
    command, environment = [sys.executable, "-c", READER, str(tmp_path)], {"PYTHONPATH": str(ROOT / "lib")}
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    before, after = ended.stdout.split()
    assert before == after


def test_two_runs_with_a_schedule_on_s3_share_no_partition(bucket: Bucket) -> None:
    def schedule(holder: str) -> TierSchedule:
        options = ScheduleOptions(holder=holder)
        return TierSchedule(tier_schedule_table(bucket.uri("tables")), clock, options)

    clock = VirtualClock()
    leases = schedule("one").take_due(COPY, {A, B})
    assert (leases.partitions, schedule("two").take_due(COPY, {A, B, C}).partitions) == ((A, B), (C,))
    leases.end(A, "no answer")
    leases.close()
    assert schedule("two").entries(COPY)[A].last_error == "no answer"
