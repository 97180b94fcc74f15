"""Choose the options with which the driver's JVM starts.

A job whose rows are read and written by Python tasks gives Spark only bookkeeping: some hundred short plans, each run
once. For these, Java's optimizing compiler (C2) and a collector with threads of its own take more processor time than
they save. So such a job starts with the quick compiler (C1) and the serial collector, if its executors run in the same
JVM (a local master). Jobs whose rows go through Spark, and sessions for SQL, keep Java's defaults.

The options are `spark.driver.defaultJavaOptions`, which Spark puts before `spark.driver.extraJavaOptions`. What the
user chose is kept: an option about the compiler, the code cache or the collector replaces the one of the same kind
here, and with a SPARK_CONF_DIR of the user's own nothing is added unless `driver.jvm` asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from coldlog.model.states import DriverJvm
from coldlog.runtime.installation import CONF
from coldlog.runtime.settings import Settings

DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"

_SMALL = {
    "-XX:TieredStopAtLevel=1": ("TieredStopAtLevel", "TieredCompilation"),
    # The code cache that the JVM chooses for C1 alone has 48 MiB, which Spark overflows.
    "-XX:ReservedCodeCacheSize=256m": ("CodeCacheSize",),
    "-XX:+UseSerialGC": ("GC ",),
}
"""Each option, and what an option of the user that replaces it contains."""
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


def _has_our_conf(environment: Mapping[str, str]) -> bool:
    return environment.get("SPARK_CONF_DIR", str(CONF)) == str(CONF)
