"""Print what a plain `spark-submit` needs, so that a job starts as with spark-submit.sh.

    spark-submit $(coldlog launch-options JOB [--master URL]) [arguments of the job]

The words are the master, a file with the options, and the script of the job. Give settings to both, to `launch-options`
and to the job, or in a file that COLDLOG_CONFIG names.

    coldlog launch-options [--master URL] [--env NAME] [--config FILE] [--set key=value]...

Without a job, this prints one JSON object: `options` are the Spark options that have an effect only before the
driver's JVM starts (the job sets all others itself), `environment` are the variables for spark-submit and the job,
`jobs` is the folder of the jobs' scripts. A scheduler in another Python environment runs `python -m
coldlog.launch_options` on the machine where the job will run.
Wrong settings end it with exit code 2 and one line on stderr.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from coldlog.errors import UsageError
from coldlog.launch.spark_options import LAUNCH_OPTIONS, executor_python, process_environment, spark_options
from coldlog.launch.submit import get_job
from coldlog.runtime.argument_parser import CommandParser
from coldlog.runtime.installation import CONF, EXECUTORS, JOBS
from coldlog.runtime.settings_sources import load_settings

_KEPT_VARIABLES = ("SPARK_CONF_DIR", "SPARK_LOCAL_IP", "NUMBA_CACHE_DIR")
"""The user's values take precedence. Python's variables are not kept: those of a scheduler name its own environment,
in which coldlog is not installed."""

_LAUNCH_PREFIXES = ("spark.jars.", "spark.submit.")


def main(argv: Sequence[str]) -> int:
    """Print the launch options, as JSON or as words for a shell; returns an exit code."""
    arguments = make_parser().parse_args(argv)
    environment = {**os.environ, **({"MASTER": arguments.master} if arguments.master else {})}
    try:
        settings = load_settings(arguments.env, arguments.set, config=arguments.config)
        options = spark_options(settings, environment)
        worker_python = executor_python(settings, options["spark.master"])
        if arguments.job is None:
            environment = launch_environment(options, environment, worker_python)
            told = json.dumps({"options": launch_options(options), "environment": environment, "jobs": str(JOBS)})
        else:
            told = " ".join(submit_words(arguments.job, options, worker_python))
    except UsageError as error:
        print(f"coldlog: {error}", file=sys.stderr)
        return 2
    print(told)
    return 0


def make_parser() -> CommandParser:
    """Make the parser of the arguments."""
    parser = CommandParser("coldlog launch-options", __doc__)
    parser.add_argument("job", nargs="?", help="print words for spark-submit that start this job")
    parser.add_argument("--master", help="the master that spark-submit is given (default: MASTER, then the settings')")
    parser.add_argument("--env", default="local", metavar="NAME", help="read conf/NAME.toml (default: local)")
    parser.add_argument("--config", metavar="FILE", help="read settings from FILE too (default: COLDLOG_CONFIG)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set one setting")
    return parser


def launch_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the session that spark-submit must get; the master is passed separately."""
    return {
        key: value
        for key, value in options.items()
        if (key in LAUNCH_OPTIONS and key != "spark.master") or key.startswith(_LAUNCH_PREFIXES)
    }


def submit_words(job: str, options: Mapping[str, str], worker_python: str) -> list[str]:
    """The arguments that start a job with spark-submit. Options have spaces, so they are in a file."""
    python = {"spark.pyspark.driver.python": sys.executable, "spark.pyspark.python": worker_python}
    words = [
        *("--master", options["spark.master"]),
        # What the cluster sets by default stays.
        *("--load-spark-defaults", "--properties-file", str(_options_file({**launch_options(options), **python}))),
        str(get_job(job, JOBS)),
    ]
    if unfit := next((word for word in words if word.split() != [word]), None):
        raise UsageError(f"{unfit!r} has a space, which a shell takes for two words: use the JSON of `launch-options`")
    return words


def _options_file(options: Mapping[str, str], directory: Path = EXECUTORS) -> Path:
    """Write the options as Java's properties, once for each content."""
    lines = [f"{key} {value}\n".replace("\\", "\\\\") for key, value in sorted(options.items())]
    content = "".join(lines).encode()
    path = directory / f"launch-{hashlib.sha256(content).hexdigest()[:16]}.conf"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as failed:
        raise UsageError(f"cannot write {path}: {failed.strerror}; set COLDLOG_CACHE") from failed
    return path


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
