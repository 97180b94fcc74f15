"""Test that two jobs never write one warehouse at once, and that a killed job leaves no lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coldlog.errors import RetriableError, UsageError
from coldlog.tables.leases.warehouse_lock import writing

_HOLDER = """
import sys, time
from coldlog.tables.leases.warehouse_lock import writing
with writing(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def _hold(folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "lib")}
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_second_writer_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    with _hold(tmp_path) as holder:
        try:
            with pytest.raises(RetriableError, match=f"process {holder.pid}.*one at a time"), writing(str(tmp_path)):
                pass
        finally:
            holder.kill()


def test_lock_is_released_by_a_killed_process_and_after_the_block(tmp_path: Path) -> None:
    with _hold(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
    with writing(str(tmp_path)):
        pass
    with writing(f"file://{tmp_path}"):
        pass


def test_folder_that_cannot_be_created_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="correct warehouse.uri"), writing(str(tmp_path / "file" / "warehouse")):
        pass
