"""Does an endpoint that meets damage answer as before, and report the segment once, also if it ends at once?"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from coldlog.tables.damage_reports import read_damage_reports
from coldlog.tables.definitions.damage_reports import DAMAGE_REPORTS
from endpoint.conftest import serving
from endpoint.support.raw_client import connected, fetch, list_offsets

_CORRUPT = 2


@pytest.fixture
def archive(golden_archive: Path, tmp_path: Path) -> Path:
    """A copy of the sample, in which the first log of orders-0 has a changed byte since it was indexed."""
    copy = Path(shutil.copytree(golden_archive, tmp_path / "archive", copy_function=os.link))
    log = min(copy.rglob("orders-0-*/*.log"))
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.unlink()
    log.write_bytes(content)
    return copy


@pytest.mark.parametrize("may_write", [True, False])
def test_damage_that_clients_meet_is_reported_once(
    golden_sidecar_uri: str, archive: Path, tmp_path: Path, may_write: bool
) -> None:
    warehouse = Path(shutil.copytree(golden_sidecar_uri, tmp_path / "warehouse"))
    if not may_write:
        (warehouse / DAMAGE_REPORTS.name).write_text("in the way of the table")
    with serving(tmp_path / "notes", str(warehouse), archive) as endpoint:
        with connected(endpoint.port) as client:
            for _ in range(3):
                (topic,) = client.ask(2, 11, list_offsets([("orders", 0, 0)])).topics
                assert topic.partitions[0].error_code == _CORRUPT
                (topic,) = client.ask(1, 12, fetch(12, [("orders", 0, 0)])).responses
                assert topic.partitions[0].error_code == _CORRUPT
        assert endpoint.end() == 0
        said = endpoint.said()
    assert said.count(" of orders-0 is damaged: batch does not match its checksum in orders-0-") == 1
    if may_write:
        (row,) = read_damage_reports(str(warehouse))
        assert (row["topic"], row["start_offset"], row["reason"]) == ("orders", 0, "crc_mismatch")
        assert said.count("1 damaged segment reported to the next run of run_pipeline") == 1
    else:
        assert said.count("damage is not reported to the next run of run_pipeline: ") == 1
