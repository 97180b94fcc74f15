"""The jobs list_offsets and lookup_offsets, run by Spark in the session of the tests."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from coldlog.launch.entry_point import job_argument_parser
from coldlog.lookups.lookup_jobs import LookupJob, add_lookup_options
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job, PlainJob
from coldlog.runtime.settings_sources import load_settings
from coldlog.tiering.read_pace import ForkedReads


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a job wrote to stdout and to stderr."""

    results: str
    progress: str


def run_list_offsets(spark: SparkSession, asked: Sequence[str], *settings: str) -> str:
    """What it tells on the way; `asked` are options of the command line."""
    return _run(LookupJob(of_list_offsets=True, reads=ForkedReads()), spark, asked, settings).progress


def run_lookup_offsets(spark: SparkSession, asked: Sequence[str], *settings: str) -> Told:
    """The same of the other job, and what it answers."""
    return _run(LookupJob(reads=ForkedReads()), spark, asked, settings)


def _run(job: LookupJob, spark: SparkSession, asked: Sequence[str], settings: Sequence[str]) -> Told:
    parser = job_argument_parser("lookup", "")
    add_lookup_options(parser)
    loaded, arguments = load_settings("local", [*settings, "lookup.engine=spark"]), parser.parse_args(asked)
    results, progress = io.StringIO(), io.StringIO()
    console = Console(progress=progress, results=results)
    assert job.in_process(PlainJob(settings=loaded, arguments=arguments, console=console)) is None
    job.with_spark(Job(spark=spark, settings=loaded, arguments=arguments, console=console))
    return Told(results=results.getvalue(), progress=progress.getvalue())


def read_answers(output: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
