"""Test checksums on processors without an instruction for CRC-32C: they are computed outside the compiled loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from damage.damage_program import LOG, is_native, list_refusals

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "support" / "damage" / "damage_program.py"


def test_both_checksum_functions_find_the_same_damage() -> None:
    environment = {
        **os.environ,
        "CRC32C_SW_MODE": "force",
        "PYTHONPATH": f"{ROOT / 'lib'}{os.pathsep}{ROOT / 'tests' / 'support'}",
    }
    ended = subprocess.run([sys.executable, str(PROGRAM)], env=environment, capture_output=True, check=True)
    other = json.loads(ended.stdout)
    assert (is_native(), other["is_native"]) == (True, False)
    refusals = list_refusals(LOG)
    assert other["refusals"] == refusals
    assert refusals[0] is None
