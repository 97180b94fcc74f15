"""job: what does a job's one call get?"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from pyspark.sql import SparkSession

from coldlog.runtime.console import Console
from coldlog.runtime.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainJob:
    """What the one call of a job without Spark gets."""

    settings: Settings
    arguments: argparse.Namespace
    console: Console


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a job's one call gets."""

    spark: SparkSession
    settings: Settings
    arguments: argparse.Namespace
    console: Console
