"""Test that `./spark-submit.sh run_pipeline`, after the setup, indexes the sample with defaults and without a network.

Of the sample only some partitions are left: .ci/run starts with all of it.

Where the kernel lets a user have a network namespace, the run has one in which there is nothing but the loopback.
Elsewhere (containers often forbid it) proxies, indexes and repositories are named that nobody serves: then what asks a
registry fails too, but not what opens a connection of its own. The name of the test's case says which it was.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import environment
import pytest

from worlds.golden_warehouse import golden_partitions
from worlds.kafka_sample import KAFKA_SAMPLE

ROOT = Path(__file__).parents[3]
NOBODY = "http://127.0.0.1:9"
TOPICS = ("orders", "payments", "late.events")
_ON_LOOPBACK_ALONE = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH22x", b"lo", 0x41))  # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING
assert [name for _, name in socket.if_nameindex()] == ["lo"], socket.if_nameindex()
os.execv(sys.argv[1], sys.argv[1:])
"""


def _in_namespace(*command: str) -> list[str]:
    return ["unshare", "--map-root-user", "--net", sys.executable, "-c", _ON_LOOPBACK_ALONE, *command]


def _has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(_in_namespace("/bin/true"), capture_output=True, check=False).returncode == 0


HAS_NAMESPACES = _has_namespaces()


def _copy_checkout(target: Path) -> None:
    """The files that git tracks, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        copied = target / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copied)


def _leave_some_partitions(checkout: Path) -> int:
    """Those of `TOPICS`; returns how many segments they have."""
    archive = checkout / KAFKA_SAMPLE.relative_to(ROOT) / "archive" / "kafka-tiered-storage"
    for directory in archive.iterdir():
        # Topic ids may have dashes; numbers of partitions do not.
        if not any(re.match(rf"{re.escape(topic)}-[0-9]+-", directory.name) for topic in TOPICS):
            shutil.rmtree(directory)
    return len(list(archive.glob("*/*.log")))


def _set_up(checkout: Path, patch: pytest.MonkeyPatch) -> None:
    """Make an installation at this place, with links to the packages and jars of this checkout."""
    (checkout / ".jars").symlink_to(environment.JARS)
    venv = checkout / ".venv"
    packages = next(environment.VENV.glob("lib/python*/site-packages"))
    for folder in (environment.VENV / "bin", packages):
        linked = venv / folder.relative_to(environment.VENV)
        linked.mkdir(parents=True)
        for each in folder.iterdir():
            (linked / each.name).symlink_to(each)
    (editable,) = (venv / packages.relative_to(environment.VENV)).glob("__editable__.coldlog-*.pth")
    editable.unlink()
    editable.write_text(f"{checkout / 'lib'}\n", encoding="utf-8")
    shutil.copy(environment.VENV / "pyvenv.cfg", venv)
    patch.setattr(environment, "REPOSITORY", checkout)
    (venv / "coldlog-runtime-stamp").write_text(environment.packages_hash(), encoding="utf-8")


def _environment(home: Path) -> Mapping[str, str]:
    """Run with an empty home directory, so that no tool finds a cache or a configuration."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "LANG", "SPARK_SUBMIT_OPTS") if name in os.environ}
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOBODY)
    registries = {"PIP_INDEX_URL": NOBODY, "UV_DEFAULT_INDEX": NOBODY, "UV_OFFLINE": "1", "MAVEN_ARGS": "--offline"}
    return {**kept, "HOME": str(home), **proxies, **registries}


@pytest.mark.parametrize("has_namespace", [HAS_NAMESPACES], ids=["namespace" if HAS_NAMESPACES else "dead-proxies"])
def test_pipeline_indexes_the_sample_with_its_defaults_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_namespace: bool
) -> None:
    checkout, home = tmp_path / "check out", tmp_path / "home"
    home.mkdir()
    _copy_checkout(checkout)
    segment_count = _leave_some_partitions(checkout)
    _set_up(checkout, monkeypatch)
    before = {path.name for path in checkout.iterdir()}
    command = [str(checkout / "spark-submit.sh"), "run_pipeline"]
    run = subprocess.run(
        _in_namespace(*command) if has_namespace else command,
        cwd=checkout,
        env=_environment(home),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr
    assert {path.name for path in checkout.iterdir()} - before == {"warehouse"}
    assert (checkout / "warehouse" / "segments" / "_delta_log").is_dir()
    shown = set(re.findall(r"^(\S+) +([0-9]+) +[0-9]+ +[0-9]+ +[0-9]+\.\.[0-9]+ ", run.stdout, re.MULTILINE))
    archived = [row for row in golden_partitions() if row["archive_end"] != -1 and row["topic"] in TOPICS]
    assert shown == {(row["topic"], str(row["partition"])) for row in archived}
    assert len(shown) == 7
    lookups = re.findall(r"^offset_for_timestamp\('[^']+', [0-9]+, [0-9]+\) .* (\w+) *$", run.stdout, re.MULTILINE)
    assert set(lookups) == {"FOUND", "LATER_THAN_ARCHIVE"}
    assert f"{segment_count} segments indexed" in run.stderr
    assert "installing" not in run.stderr
    assert "WARN" not in run.stderr
    assert len(run.stderr.splitlines()) < 12, run.stderr
