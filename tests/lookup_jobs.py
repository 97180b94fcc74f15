"""The job list_offsets, run in the session of the tests."""

from __future__ import annotations

import io
import json
from pathlib import Path

from pyspark.sql import SparkSession

from coldlog.console import Console
from coldlog.entry_point import job_argument_parser
from coldlog.job import Job
from coldlog.operations.lookup import add_lookup_options, prepare_list_offsets
from coldlog.settings_sources import load_settings


def run_list_offsets(spark: SparkSession, asked: list[str], *settings: str) -> str:
    """What it tells on the way; `asked` are options of the command line."""
    parser = job_argument_parser("list_offsets: which?")
    add_lookup_options(parser)
    loaded, arguments = load_settings("local", settings), parser.parse_args(asked)
    progress = io.StringIO()
    console = Console(progress=progress, results=io.StringIO())
    run = prepare_list_offsets(loaded, arguments)
    run(Job(spark=spark, settings=loaded, arguments=arguments, console=console))
    return progress.getvalue()


def read_answers(output: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
