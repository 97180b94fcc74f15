"""A checksum that differs is found inside the compiled loop, and where no C function can be called from there, behind
it: both tell the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, build_batch, build_segment
from coldlog.errors import Reason
from damage_program import is_native, list_refusals

TESTS = Path(__file__).parents[2]
BATCHES = [
    Batch(base_offset=0, records=(Record(timestamp_ms=5, value=b"v" * 9),), leader_epoch=1),
    Batch(
        base_offset=1, records=tuple(Record(timestamp_ms=6 + at) for at in range(3)), codec=Codec.ZSTD, leader_epoch=1
    ),
    Batch(base_offset=4, records=(Record(timestamp_ms=4, key=b"k"),), leader_epoch=2),
]
LOG = build_segment(BATCHES)


def test_both_ways_to_compute_a_checksum_tell_the_same_damage() -> None:
    environment = {**os.environ, "CRC32C_SW_MODE": "force", "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent / 'lib'}"}
    ended = subprocess.run(
        [sys.executable, str(TESTS / "damage_program.py")], input=LOG, env=environment, capture_output=True, check=True
    )
    other = json.loads(ended.stdout)
    assert (is_native(), other["is_native"]) == (True, False)
    own = list_refusals(LOG)
    assert other["refusals"] == own
    assert own[0] is None


def test_a_checksum_that_differs_is_told_with_its_batch_and_both_values() -> None:
    border = len(build_batch(BATCHES[0]))
    refusals = list_refusals(LOG)
    assert len(refusals) == 4 * (len(LOG) + 1)
    for at in (border + 17, border + 21, border + 60, border + 70):
        told = refusals[4 * (at + 1) : 4 * (at + 2)]
        assert told == told[:1] * 4, "whatever the depth and the windows"
        assert told[0] is not None
        reason, message, position, expected, found = told[0]
        assert (reason, message, position) == (Reason.CRC_MISMATCH, "batch does not match its checksum", border)
        assert expected != found
