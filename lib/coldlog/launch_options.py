"""Print what a plain `spark-submit` needs, so that a job starts as with spark-submit.sh.

    python -m coldlog.launch_options [--master URL] [--env NAME] [--set key=value]...

prints one JSON object: `options` are the Spark options that have an effect only before the driver's JVM starts (the job
sets all others itself), `environment` are the variables for spark-submit and the job. A scheduler in another Python
environment runs this program on the machine where the job will run. Wrong settings end it with exit code 2 and one line
on stderr.
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
from coldlog.runtime.installation import CONF
from coldlog.runtime.settings_sources import load_settings

_KEPT_VARIABLES = ("SPARK_CONF_DIR", "SPARK_LOCAL_IP", "NUMBA_CACHE_DIR")
"""The user's values take precedence. Python's variables are not kept: those of a scheduler name its own environment,
in which coldlog is not installed."""

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
    """The options of the session that spark-submit must get; the master is passed separately."""
    return {
        key: value
        for key, value in options.items()
        if (key in LAUNCH_OPTIONS and key != "spark.master") or key.startswith(_LAUNCH_PREFIXES)
    }


def launch_environment(
    options: Mapping[str, str], environment: Mapping[str, str], worker_python: str = ""
) -> dict[str, str]:
    """The variables for spark-submit and its driver, in addition to those of the scheduler."""
    kept = {key: environment[key] for key in _KEPT_VARIABLES if key in environment}
    scripts = str(Path(sys.executable).parent)
    return {
        **process_environment(
            kept,
            options["spark.master"],
            python=sys.executable,
            conf=CONF,
            worker_python=worker_python,
        ),
        "SPARK_HOME": _spark_home(),
        "PATH": os.pathsep.join([scripts, environment.get("PATH", os.defpath)]),
        # The master that is really used decides whether a loopback address is enough.
        "MASTER": options["spark.master"],
    }


def _spark_home() -> str:
    """The Spark that belongs to the installed pyspark; another version is not compatible."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise UsageError("pyspark is not installed: run `make setup` in a checkout, else pip install 'coldlog[spark]'")
    return str(Path(found.origin).parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
