"""State what differs between the versions of Spark that coldlog runs on.

`SERIES` has one entry for each: 4.0, 4.1 and 4.2. It says which jars fit, and what that Spark cannot do. Whoever needs
something that not all have asks `installed_series`. Spark itself is not imported here.

- Before 4.1 a Python data source gets no filters. Options of the source narrow what is read.
- Before 4.2 a Python data source cannot limit the micro-batches of a stream.
- The Hadoop of 4.0 cannot put an object on the condition that it is absent. So tables in a bucket, which need this to
  keep two drivers apart, are refused.

Refused with `UsageError`: every other version. Spark 3.5 has no Python data source; for 4.3 Delta has no jar yet.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from coldlog.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSeries:
    """A series of Spark, such as all of 4.1. `jar_properties` are those of conf/jars/pom.xml that it needs."""

    name: str
    jar_properties: Mapping[str, str]
    pushes_filters: bool = True
    limits_streams: bool = True
    puts_conditionally: bool = True
    partitions_by_id: bool = True
    """Whether a DataFrame has `repartitionById`."""

    @property
    def limits(self) -> list[str]:
        """What this Spark cannot do, in words."""
        texts = {
            "pushes no filters to the records": self.pushes_filters,
            "no maxOffsetsPerTrigger": self.limits_streams,
            "no tables in a bucket": self.puts_conditionally,
        }
        return [text for text, can in texts.items() if not can]


def _jars(series: str, *, hadoop: str, awssdk: str, accelerator: str) -> Mapping[str, str]:
    """The version of Hadoop that this Spark has, and those that this Hadoop asks for."""
    return {
        "spark.series": series,
        "hadoop.version": hadoop,
        "awssdk.version": awssdk,
        "analyticsaccelerator.version": accelerator,
    }


SERIES: Mapping[str, SparkSeries] = {
    each.name: each
    for each in (
        SparkSeries(
            name="4.0",
            # Hadoop 3.4.1 asks for 2.24.6, of which not all parts are published, and for no accelerator.
            jar_properties=_jars("4.0", hadoop="3.4.1", awssdk="2.29.52", accelerator="1.2.1"),
            pushes_filters=False,
            limits_streams=False,
            puts_conditionally=False,
            partitions_by_id=False,
        ),
        SparkSeries(
            name="4.1",
            jar_properties=_jars("4.1", hadoop="3.4.2", awssdk="2.29.52", accelerator="1.2.1"),
            limits_streams=False,
        ),
        SparkSeries(name="4.2", jar_properties=_jars("4.2", hadoop="3.5.0", awssdk="2.35.4", accelerator="1.3.1")),
    )
}
NEWEST = SERIES["4.2"]
"""What constraints.txt pins, and conf/jars/pom.xml names."""


def installed_version() -> str | None:
    """The version of pyspark, None if it is not installed."""
    if "pyspark" in sys.modules:
        return str(sys.modules["pyspark"].__version__)
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


def find_series(version: str) -> SparkSeries:
    """The series of a version; `UsageError` if coldlog does not support it."""
    series = SERIES.get(".".join(version.split(".")[:2]))
    if series is None:
        *others, last = SERIES
        raise UsageError(f"Spark {version} is not supported: install pyspark {', '.join(others)} or {last}")
    return series


def installed_series() -> SparkSeries:
    """The series of the installed pyspark; `UsageError` if coldlog does not support it, the newest without pyspark."""
    version = installed_version()
    return NEWEST if version is None else find_series(version)
