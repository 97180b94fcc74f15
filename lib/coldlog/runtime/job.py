"""Define what the function of a job receives: settings, arguments, console and a Spark session."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coldlog.runtime.console import Console
from coldlog.runtime.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainJob:
    """What the function of a job without Spark receives."""

    settings: Settings
    arguments: argparse.Namespace
    console: Console


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the function of a job with Spark receives."""

    spark: SparkSession
    settings: Settings
    arguments: argparse.Namespace
    console: Console


def job_console(arguments: argparse.Namespace) -> Console:
    """The console that the options of a job ask for."""
    return Console(is_quiet=arguments.quiet, is_json=arguments.log_format == "json")
