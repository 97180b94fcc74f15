"""launch_options: what must plain `spark-submit` be given, so that a job starts as spark-submit.sh starts it?

    python -m coldlog.launch_options [--master URL] [--env NAME] [--set key=value]...

prints one JSON object: `options`, the Spark options that count only before the driver's JVM runs (the job sets all
others itself), and `environment`, the variables that spark-submit and the job are to have. A scheduler that lives in
another Python environment asks this program where the job will run. Settings are checked on the way: exit code 2 for
wrong ones, with one line on stderr.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from coldlog.errors import UsageError
from coldlog.launch.spark_options import LAUNCH_OPTIONS, executor_python, process_environment, spark_options
from coldlog.runtime.settings_sources import REPOSITORY, load_settings

_KEPT_VARIABLES = ("SPARK_CONF_DIR", "SPARK_LOCAL_IP", "NUMBA_CACHE_DIR")
"""The user's own win. Not so Python's: a scheduler's names its own environment, where coldlog is not installed."""

_LAUNCH_PREFIXES = ("spark.jars.", "spark.submit.")


def main(argv: Sequence[str]) -> int:
    """Print the launch options as JSON; returns an exit code."""
    parser = argparse.ArgumentParser(prog="coldlog.launch_options", allow_abbrev=False)
    parser.add_argument("--master", help="the master that spark-submit is given (default: MASTER, then the settings')")
    parser.add_argument("--env", default="local")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args(argv)
    environment = {**os.environ, **({"MASTER": arguments.master} if arguments.master else {})}
    try:
        settings = load_settings(arguments.env, arguments.set)
        options = spark_options(settings, environment)
        worker_python = executor_python(settings, options["spark.master"])
        launch = {
            "options": launch_options(options),
            "environment": launch_environment(options, environment, worker_python),
        }
    except UsageError as error:
        print(f"coldlog: {error}", file=sys.stderr)
        return 2
    print(json.dumps(launch))
    return 0


def launch_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those of the session's options that spark-submit must be given; the master is said otherwise."""
    return {
        key: value
        for key, value in options.items()
        if (key in LAUNCH_OPTIONS and key != "spark.master") or key.startswith(_LAUNCH_PREFIXES)
    }


def launch_environment(
    options: Mapping[str, str], environment: Mapping[str, str], worker_python: str = ""
) -> dict[str, str]:
    """The variables of spark-submit and of the driver that it starts, beyond those that the scheduler has."""
    kept = {key: environment[key] for key in _KEPT_VARIABLES if key in environment}
    scripts = str(Path(sys.executable).parent)
    return {
        **process_environment(
            kept,
            options["spark.master"],
            python=sys.executable,
            conf=REPOSITORY / "conf",
            worker_python=worker_python,
        ),
        "SPARK_HOME": _spark_home(),
        "PATH": os.pathsep.join([scripts, environment.get("PATH", os.defpath)]),
        # Whether an address of this machine alone will do is decided by the master that is really used.
        "MASTER": options["spark.master"],
    }


def _spark_home() -> str:
    """The Spark beside pyspark: another version would not understand it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise UsageError("pyspark is not installed here: run `make setup`")
    return str(Path(found.origin).parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
