"""Test that a file of requests without a request is said, by commands and jobs, and has an output without rows."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from coldlog.command.main import main
from coldlog.launch.entry_point import job_argument_parser
from coldlog.lookups.lookup_jobs import LookupJob, add_list_offsets_options
from coldlog.runtime.console import Console
from coldlog.runtime.job import PlainJob
from coldlog.runtime.settings_sources import load_settings

EARLIER = Path(__file__).parents[2] / "golden" / "warehouses" / "2026-11-24.tar.gz"
EMPTY = {"asked.csv": "topic,partition,timestamp_ms\n", "asked.jsonl": "\n"}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A small warehouse."""
    with tarfile.open(EARLIER) as files:
        files.extractall(tmp_path / "tables", filter="data")
    return tmp_path / "tables"


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("command", ["lookup", "offsets"])
def test_a_command_says_that_a_file_has_no_requests(
    command: str, name: str, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(EMPTY[name])
    assert main([command, "--requests", str(path), "--csv", "-w", str(tables)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("topic,partition,timestamp_ms,")
    assert printed.out.count("\n") == 1
    assert printed.err == f"coldlog: {path}: no requests, so there are no answers\n"


@pytest.mark.parametrize("of_list_offsets", [False, True])
@pytest.mark.parametrize("name", EMPTY)
def test_a_job_says_that_a_file_has_no_requests_also_if_it_is_quiet(
    name: str, of_list_offsets: bool, tables: Path, tmp_path: Path
) -> None:
    path, output = tmp_path / name, tmp_path / "answers.jsonl"
    path.write_text(EMPTY[name])
    parser = job_argument_parser("list_offsets", "")
    add_list_offsets_options(parser)
    arguments = parser.parse_args(["--requests", str(path), "--output", str(output)])
    settings = load_settings("local", [f"warehouse.uri={tables}"])
    console = Console(progress=io.StringIO(), results=io.StringIO(), is_quiet=True)
    job = PlainJob(settings=settings, arguments=arguments, console=console)
    assert LookupJob(of_list_offsets=of_list_offsets).in_process(job) == 0
    assert output.read_bytes() == b""
    assert isinstance(console.progress, io.StringIO)
    assert console.progress.getvalue() == f"{path}: no requests, so there are no answers\n"
