"""Check what coldlog needs, and name the command that fixes what is wrong.

    coldlog doctor
    coldlog doctor --set archive.uri=/mnt/tiered -w /data/coldlog

Checks Spark, Java and jars, the archive, the tables, and the metadata topic if one is configured. Only jobs need the
first three: where Spark is not installed, what is missing of them is optional, and not wrong. Writes nothing.
Exit codes: 0, 1 if something is wrong, 2 for wrong settings.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from coldlog.command.shared.outputs import Shown, add_output_options, write_rows
from coldlog.command.shared.settings_options import add_settings_options, read_settings
from coldlog.errors import ColdlogError
from coldlog.runtime.extras import missing_extra
from coldlog.runtime.given_settings import with_given_settings
from coldlog.runtime.installation import COMMAND, SETUP

if TYPE_CHECKING:
    from coldlog.runtime.settings import Settings

_LEAST_JAVA = 17
_NAMES = ("check", "state", "finding", "mend")


class _WrongError(Exception):
    """What is wrong, and the command that mends it. Without Spark, what only jobs need is optional."""

    def __init__(self, finding: str, mend: str, *, is_for_jobs: bool = False) -> None:
        super().__init__(finding)
        self.mend = mend
        self.is_for_jobs = is_for_jobs

    @property
    def state(self) -> str:
        """Whether it is wrong, or optional."""
        from coldlog.runtime.spark.spark_versions import installed_version

        return "optional" if self.is_for_jobs and installed_version() is None else "wrong"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_output_options(parser)
    add_settings_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print one row per check."""
    from coldlog.runtime.spark.without_pandas import keep_pandas_out

    settings = read_settings(arguments)
    keep_pandas_out()
    rows = list(_iter_checks(settings, arguments))
    shown: Shown = {
        "check": lambda row: row["check"],
        "state": lambda row: row["state"],
        "finding": lambda row: row["finding"],
        "mend": lambda row: row["mend"],
    }
    write_rows(arguments, _NAMES, rows, shown)
    return int(any(row["state"] == "wrong" for row in rows))


def _iter_checks(settings: Settings, arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    checks: dict[str, Callable[[Settings], str]] = {
        "spark": _check_spark,
        "java": _check_java,
        "jars": _check_jars,
        "archive": _check_archive,
        "tables": _check_tables,
        "last run": _check_last_run,
        "metadata topic": _check_metadata_topic,
    }
    for name, check in checks.items():
        row: dict[str, object] = {"check": name, "state": "wrong", "mend": None}
        try:
            row |= {"state": "ok", "finding": check(settings)}
        except _WrongError as wrong:
            takes_settings = wrong.mend.startswith(f"{COMMAND} ") and wrong.mend != SETUP
            mend = with_given_settings(wrong.mend, arguments) if takes_settings else wrong.mend
            row |= {"state": wrong.state, "finding": str(wrong), "mend": mend}
        except ColdlogError as wrong:
            row |= {"finding": str(wrong), "mend": "; ".join(getattr(wrong, "__notes__", ())) or None}
        except ModuleNotFoundError as missing:
            wrong_package = missing_extra(missing)
            if wrong_package is None:
                raise
            row |= {"finding": str(wrong_package)}
        yield row


def _check_spark(_: Settings) -> str:
    from coldlog.runtime.extras import install_command
    from coldlog.runtime.spark.spark_versions import find_series, installed_version

    version = installed_version()
    if version is None:
        raise _WrongError("not found; only the jobs need it", install_command("spark"), is_for_jobs=True)
    return "; ".join([version, *find_series(version).limits])


def _check_java(_: Settings) -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        mend = f"install Java {_LEAST_JAVA} or newer; set JAVA_HOME or PATH"
        raise _WrongError("not found; only the jobs need it", mend, is_for_jobs=True)
    ran = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r'version "(?:1\.)?([0-9]+)', ran.stderr)
    if found is None or int(found[1]) < _LEAST_JAVA:
        version = "of an unknown version" if found is None else found[1]
        raise _WrongError(f"{java} is {version}", f"set JAVA_HOME to Java {_LEAST_JAVA} or newer", is_for_jobs=True)
    return f"{found[1]}, {java}"


def _check_jars(_: Settings) -> str:
    from coldlog.runtime.installation import default_jar_directory

    folder = default_jar_directory()
    jars = list(folder.glob("*.jar"))
    if not jars:
        raise _WrongError(f"none in {folder}; only the jobs need them", SETUP, is_for_jobs=True)
    return f"{len(jars)} in {folder}"


def _check_archive(settings: Settings) -> str:
    from coldlog.runtime.open_layout import open_or_advise

    open_or_advise(settings)
    return f"{settings.archive_uri}, {settings.archive.layout}"


def _check_tables(settings: Settings) -> str:
    from coldlog.lookups.served_index import list_warehouse_files
    from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
    from coldlog.tables.delta.files.table_files import NoTableError
    from coldlog.tables.table_rows import read_table

    try:
        files = list_warehouse_files(settings.warehouse_uri)
    except NoTableError as none:
        raise _WrongError(str(none), f"{COMMAND} run") from none
    rows = read_table(settings, PARTITION_METADATA, ("segment_count",), {"is_current": True})
    if not rows:
        raise _WrongError(f"{settings.warehouse_uri} has no partition", f"{COMMAND} run")
    return f"{settings.warehouse_uri}: {len(rows)} partitions, publish {files.publish_number}"


def _check_last_run(settings: Settings) -> str:
    from coldlog.runtime.console import human_timestamp
    from coldlog.tables.definitions.job_runs import JOB_RUNS
    from coldlog.tables.table_rows import read_table

    runs = read_table(settings, JOB_RUNS, ("job", "started_ms", "outcome", "error"))
    if not runs:
        return "none is recorded"
    last = max(runs, key=lambda row: int(row["started_ms"]))
    text = f"{last['job']} of {human_timestamp(last['started_ms'])} {last['outcome']}"
    if last["outcome"] in ("failed", "killed"):
        error = str(last["error"] or "").partition("\n")[0]
        raise _WrongError(f"{text}: {error}" if error else text, f"{COMMAND} {last['job']}")
    return text


def _check_metadata_topic(settings: Settings) -> str:
    from coldlog.archive.open_archive import open_store
    from coldlog.archive.stores.s3_location import is_s3_uri
    from coldlog.runtime.open_layout import s3_options
    from coldlog.runtime.settings import MetadataSource

    uri, servers, topic = settings.metadata.uri, settings.metadata.bootstrap_servers, settings.metadata.topic
    if uri is None:
        return "not configured (metadata.uri)" if servers is None else servers
    if not is_s3_uri(uri) and not Path(uri).is_dir():
        raise _WrongError(f"{uri} is not a folder", "correct metadata.uri")
    if settings.metadata.source is MetadataSource.LOG_SEGMENTS:
        partition = re.compile(rf"{re.escape(topic)}-[0-9]+")
        names = open_store(uri, s3_options(settings)).list_directories("")
        if not any(partition.fullmatch(name) for name in names):
            mend = "correct metadata.uri: the folder that holds them; or metadata.topic"
            raise _WrongError(f"{uri} has no directory {topic}-<partition>", mend)
    return uri
