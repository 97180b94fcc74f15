"""Test concurrent processes that append to one metadata log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from coldlog.archive.metadata_log import list_metadata_partitions
from coldlog.archive.metadata_log_reader import iter_metadata_records
from coldlog.archive.stores.local_store import LocalStore
from coldlog.formats.limits import DecodeLimits
from coldlog.runtime.installation import ROOT

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)


def test_concurrent_processes_append_without_loss_and_in_their_own_order(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from coldlog.archive.metadata_log_writer import writing_metadata_log\n"
        "with writing_metadata_log(sys.argv[1], partition_count=2, segment_bytes=2000) as writer:\n"
        "    for number in range(60):\n"
        "        writer.append(number % 2, [f'{sys.argv[2]} {number:03d}'.encode()], 1)\n"
    )
    environment = {"PYTHONPATH": str(ROOT / "lib")}
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name], env=environment) for name in "abc"
    ]
    assert [each.wait() for each in started] == [0, 0, 0]
    store = LocalStore(root=str(tmp_path), uri=str(tmp_path))
    assert len(list_metadata_partitions(store)) == 2
    for partition in list_metadata_partitions(store):
        records = list(iter_metadata_records(store, partition, 0, LIMITS))
        values = [(each.value or b"").decode() for each in records]
        assert [each.offset for each in records] == list(range(90))
        for name in "abc":
            assert [v for v in values if v.startswith(name)] == [
                f"{name} {n:03d}" for n in range(partition.partition, 60, 2)
            ]
