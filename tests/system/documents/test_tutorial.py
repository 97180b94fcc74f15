"""Run every command of the tutorial in an empty folder, and compare what it prints with what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from coldlog.runtime.installation import ROOT

PAGE = ROOT / "docs" / "tutorial" / "first-answers.md"
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED_AS = re.compile(r"Save this as `(\w+\.py)`")

pytestmark = pytest.mark.timeout(1200)


def run(command: str, folder: Path) -> str:
    """What the command prints; jobs get the warehouse of the folder, because theirs is that of the checkout."""
    command = command.replace(".venv/bin/", f"{ROOT}/.venv/bin/")
    if command.startswith("./spark-submit.sh"):
        command = f"{ROOT}/{command[2:]} --set warehouse.uri=warehouse"
    environment = {**os.environ, "MASTER": "local[2]", "SPARK_DRIVER_MEMORY": "1g"}
    answer = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, f"{command}\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout


def assert_shown(expected: str, printed: str) -> None:
    """Each line of the page is a line of the output, in this order; `...` stands for lines, or for the rest of one.
    Empty lines do not count."""
    lines = filter(None, printed.splitlines())
    is_after_gap = False
    for shown in filter(None, expected.splitlines()):
        if shown == "...":
            is_after_gap = True
            continue
        beginning, gap, _ = shown.partition("...")
        found = next((line for line in lines if not is_after_gap or line.startswith(beginning)), "")
        assert found.startswith(beginning) if gap else found.rstrip() == shown.rstrip(), f"{shown!r} in\n{printed}"
        is_after_gap = False
    if not is_after_gap:
        assert not list(lines), f"the page shows less than\n{printed}"


def test_every_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = iter(SAVED_AS.findall(text))
    commands = 0
    for language, block in FENCED.findall(text):
        if language == "python":
            (tmp_path / next(names)).write_text(block, encoding="utf-8")
            continue
        command, _, expected = block.removeprefix("$ ").partition("\n")
        assert_shown(expected, run(command, tmp_path))
        commands += 1
    assert commands == 6
    assert next(names, None) is None


def test_a_line_that_is_not_printed_is_noticed() -> None:
    with pytest.raises(AssertionError, match="offset 3"):
        assert_shown("offset 1\n...\noffset 3\n", "offset 1\noffset 2\n")
    with pytest.raises(AssertionError, match="the page shows less"):
        assert_shown("offset 1\n", "offset 1\noffset 2\n")
