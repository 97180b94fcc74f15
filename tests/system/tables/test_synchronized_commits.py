"""Test that each commit of a run is on the disk before its version is taken, as the kernel sees it.

strace notes what all processes of `run_pipeline` ask of the kernel. A small run commits by the library itself. So a
session appends rows by Spark (`SynchronizedLogStore`) after it, as a large one does; both are held to the same.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.directory_digests import DIRECTORY_DIGESTS
from damage.killed_jobs import ROOT
from worlds.kafka_sample import KAFKA_SAMPLE

_TRACED = ("fsync", "fdatasync", "link", "linkat", "rename", "renameat", "renameat2")
_UNFINISHED = "<unfinished ...>"
_VERSION = re.compile(r"/_delta_log/\d{20}\.json$")
_OF_SPARK = re.compile(r"\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp$")
"""The names that `SynchronizedLogStore` gives to complete commits; the library's have no dashes."""

_COMMITS_OF_SPARK = 2
_APPEND_BY_SPARK = """
import sys
from coldlog.launch.session import spark_session
from coldlog.runtime.settings_sources import load_settings
uri, count = sys.argv[1:]
spark = spark_session(load_settings("local", [f"warehouse.uri={uri}"]))
place = f"{uri}/unrecognized_objects"
schema = spark.read.format("delta").load(place).schema
for number in range(int(count)):
    spark.createDataFrame([(str(number), number, "")], schema).write.format("delta").mode("append").save(place)
spark.stop()
"""

Call = tuple[str, list[str]]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traced") / "warehouse"


@pytest.fixture(scope="module")
def calls(warehouse: Path) -> list[Call]:
    """Successful calls of a run over one partition, in the order in which they ended: the name, and the paths."""
    archive, trace = warehouse.with_name("archive"), warehouse.with_name("trace")
    sample = KAFKA_SAMPLE / "archive" / "kafka-tiered-storage"
    (directory,) = sample.glob("payments-1-*")
    shutil.copytree(directory, archive / sample.name / directory.name)
    settings = (f"archive.uri={archive}", f"warehouse.uri={warehouse}", "spark.sql.shuffle.partitions=1")
    options = [word for setting in settings for word in ("--set", setting)]
    found: list[Call] = []
    for command in (
        [str(ROOT / "spark-submit.sh"), "run_pipeline", *options],
        [sys.executable, "-c", _APPEND_BY_SPARK, str(warehouse), str(_COMMITS_OF_SPARK)],
    ):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
        run = subprocess.run(
            [*_strace(trace), *command],
            cwd=warehouse.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        found += _iter_calls(trace.read_text(encoding="utf-8", errors="replace"))
    return found


def _strace(trace: Path) -> list[str]:
    program = shutil.which("strace")
    if program is None:
        pytest.fail("strace is needed to see what a run asks of the kernel and was not found; install it")
    options = [
        "-f",
        "--seccomp-bpf",
        "-y",
        "-qq",
        "-s",
        "4096",
        "-e",
        "signal=none",
        "-e",
        f"trace={','.join(_TRACED)}",
    ]
    return [program, *options, "-o", str(trace)]


def _iter_calls(trace: str) -> Iterator[Call]:
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        thread, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith(_UNFINISHED):
            begun[thread] = text.removesuffix(_UNFINISHED)
            continue
        if text.startswith("<... "):
            text = begun.pop(thread, "") + text.partition("resumed>")[2]
        name, _, rest = text.partition("(")
        arguments, _, result = rest.rpartition(")")
        if result.split() == ["=", "0"]:
            paths = re.findall(r'"(.*?)"', arguments) or re.findall(r"<(.*)>", arguments)
            # Digests count only if they agree with the last run's witness, and a damaged table of them is made anew.
            if not any(f"/{DIRECTORY_DIGESTS.name}/" in path for path in paths):
                yield name, paths


def _is_link_to_version(name: str, path: str) -> bool:
    return name.startswith("link") and _VERSION.search(path) is not None


def test_versions_are_taken_only_by_links_which_fail_if_the_name_exists(calls: list[Call], warehouse: Path) -> None:
    versions = (str(each) for each in warehouse.rglob("*.json") if _VERSION.search(str(each)))
    written = {each for each in versions if Path(each).parts[-3] != DIRECTORY_DIGESTS.name}
    assert {each.name for each in ALL_TABLES} <= {Path(each).parts[-3] for each in written}
    assert written == {paths[-1] for name, paths in calls if _is_link_to_version(name, paths[-1])}
    assert [paths for name, paths in calls if name.startswith("rename") and _VERSION.search(paths[-1])] == []


def test_data_files_commit_and_names_are_on_the_disk_before_the_version_is_taken(calls: list[Call]) -> None:
    by_spark = by_library = data_files = 0
    synchronized: set[str] = set()
    for name, paths in calls:
        if name.endswith("sync"):
            synchronized.update(paths)
        elif name.startswith("rename") and paths[0] in synchronized:
            synchronized.add(paths[1])
        elif _is_link_to_version(name, paths[-1]):
            complete, version = paths[0], Path(paths[1])
            table, added = str(version.parents[1]), _added_files(version)
            needed = (complete, table, *added) if added else (complete,)
            assert [each for each in needed if each not in synchronized] == [], version
            # The folder has new names at the next commit.
            synchronized.discard(table)
            is_of_spark = _OF_SPARK.search(complete) is not None
            by_spark, by_library = by_spark + is_of_spark, by_library + (not is_of_spark)
            data_files += len(added)
    assert by_spark == _COMMITS_OF_SPARK
    assert min(by_library, data_files) > 10, (by_library, data_files)


def _added_files(version: Path) -> list[str]:
    """The data files that a commit adds, and their checksums, as far as no later commit of the run removed them."""
    actions = [json.loads(line) for line in version.read_text(encoding="utf-8").splitlines()]
    added = [version.parents[1] / unquote(action["add"]["path"]) for action in actions if "add" in action]
    return [str(each) for path in added for each in (path, path.with_name(f".{path.name}.crc")) if each.exists()]


def test_name_of_a_version_is_on_the_disk_before_the_next_version_is_taken(calls: list[Call]) -> None:
    waiting: dict[str, str] = {}
    taken = 0
    for name, paths in calls:
        if name.endswith("sync"):
            waiting.pop(paths[0], None)
        elif _is_link_to_version(name, paths[-1]):
            folder = str(Path(paths[-1]).parent)
            assert folder not in waiting, f"{paths[-1]} was taken first"
            waiting[folder], taken = paths[-1], taken + 1
    assert waiting == {}
    assert taken > 10
