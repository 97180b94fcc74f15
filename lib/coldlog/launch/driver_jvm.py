"""Choose the options with which the driver's JVM starts.

A job whose rows are read and written by Python tasks gives Spark only bookkeeping: some hundred short plans, each run
once. For these, Java's optimizing compiler (C2) and a collector with threads of its own take more processor time than
they save. So such a job starts with the quick compiler (C1) and the serial collector, if its executors run in the same
JVM (a local master). Jobs whose rows go through Spark keep Java's defaults if there are many, and so do sessions for
SQL.

The options are `spark.driver.defaultJavaOptions`, which Spark puts before `spark.driver.extraJavaOptions`. What the
user chose is kept: an option about the compiler, the code cache or the collector replaces the one of the same kind
here, and with a SPARK_CONF_DIR of the user's own nothing is added unless `driver.jvm` asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from coldlog.model.states import DriverJvm
from coldlog.runtime.installation import CONF
from coldlog.runtime.settings import Settings
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.delta.locations import local_folder, table_location

DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"

_SMALL = {
    "-XX:TieredStopAtLevel=1": ("TieredStopAtLevel", "TieredCompilation"),
    # The code cache that the JVM chooses for C1 alone has 48 MiB, which Spark overflows.
    "-XX:ReservedCodeCacheSize=256m": ("CodeCacheSize",),
    "-XX:+UseSerialGC": ("GC ",),
}
"""Each option, and what an option of the user that replaces it contains."""
_MOST_SMALL_BYTES = 16 << 20
"""About a million rows of an index. An estimate: measured were tables of 1.8 MB."""
_USERS_OPTIONS = (DEFAULT_OPTIONS, "spark.driver.extraJavaOptions")
_USERS_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


def driver_jvm_options(
    settings: Settings, environment: Mapping[str, str], *, is_local: bool, has_rows_in_spark: bool
) -> dict[str, str]:
    """Return the option that starts a small JVM; nothing if Java's defaults are better.

    `has_rows_in_spark`: Spark itself reads or writes the rows of the job.
    """
    wish = settings.driver.jvm
    is_small = wish is DriverJvm.SMALL or (
        wish is DriverJvm.AUTO and is_local and not has_rows_in_spark and _has_our_conf(environment)
    )
    if not is_small:
        return {}
    chosen = [settings.spark.get(key, "") for key in _USERS_OPTIONS]
    chosen += [environment.get(name, "") for name in _USERS_VARIABLES]
    text = " ".join(chosen) + " "
    ours = [option for option, kinds in _SMALL.items() if not any(kind in text for kind in kinds)]
    return {DEFAULT_OPTIONS: " ".join([*ours, settings.spark.get(DEFAULT_OPTIONS, "")]).strip()} if ours else {}


def has_large_tables(settings: Settings) -> bool:
    """Whether the tables have so many bytes that Java's optimizing compiler pays. In a bucket they always do."""
    total = 0
    for table in ALL_TABLES:
        folder = local_folder(table_location(settings.warehouse_uri, table.name))
        if folder is None:
            return True
        for size in _file_sizes(folder):
            total += size
            if total > _MOST_SMALL_BYTES:
                return True
    return False


def _file_sizes(folder: str) -> Iterator[int]:
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # removed meanwhile by maintenance
                continue


def _has_our_conf(environment: Mapping[str, str]) -> bool:
    return environment.get("SPARK_CONF_DIR", str(CONF)) == str(CONF)
