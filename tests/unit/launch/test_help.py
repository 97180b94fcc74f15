"""Test that every job and program prints its help where only the package without extras is installed."""

from __future__ import annotations

import re
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from changed_library import changed_library
from coldlog.launch.entry_point import job_argument_parser
from coldlog.launch.submit import list_jobs
from coldlog.runtime.extras import MODULES
from coldlog.runtime.installation import ROOT


def test_help_needs_no_package_of_an_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (each for modules in MODULES.values() for each in modules):
        monkeypatch.setitem(sys.modules, module, None)
    jobs = list_jobs(ROOT / "jobs")
    with changed_library(tmp_path) as copy:  # imports the library again
        for job, summary in jobs.items():
            monkeypatch.setattr(sys, "argv", [job, "--help"])
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(copy / "jobs" / f"{job}.py"), run_name="__main__")
            printed = capsys.readouterr()
            assert (ended.value.code, printed.err) == (0, ""), job
            assert printed.out.startswith(f"usage: spark-submit.sh {job} ")
            assert re.fullmatch(r"[A-Z][^?]*\.", summary)
            assert summary in printed.out
        command: Any = import_module("coldlog.command.main")
        for program in command.PROGRAMS:
            with pytest.raises(SystemExit) as ended:
                command.main([program, "--help"])
            assert (ended.value.code, capsys.readouterr().out.split()[:3]) == (0, ["usage:", "coldlog", program])


@pytest.mark.parametrize("option", ["--help", "-h", "--list-settings"])
def test_a_job_is_started_for_its_help_without_its_packages(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    submit: Any = import_module("coldlog.launch.submit")
    monkeypatch.setattr(submit, "_execute", started.append)
    monkeypatch.setattr("coldlog.runtime.extras.find_spec", lambda _: None)
    submit.become("run_pipeline", [option])
    assert [command[1:] for command in started] == [[str(ROOT / "jobs" / "run_pipeline.py"), option]]
    with pytest.raises(Exception, match=r"the Python package pyspark is missing"):
        submit.become("run_pipeline", ["--quiet"])


def test_a_job_takes_the_warehouse_as_the_commands_do() -> None:
    given = [
        "--set",
        "index.depth=batch",
        "-w",
        "/data/coldlog",
        "--set",
        "env.x=1",
        "--warehouse",
        "s3://bucket/tables",
    ]
    assert job_argument_parser("scan_segments.py", "").parse_args(given).set == [
        "index.depth=batch",
        "warehouse.uri=/data/coldlog",
        "env.x=1",
        "warehouse.uri=s3://bucket/tables",
    ]
