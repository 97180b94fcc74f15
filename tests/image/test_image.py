"""Run the image: its user, every job, its endpoint, and what stopping it leaves. `make test-image` builds it first.

BUILDER is the command of docker, or one that takes the same words. Containers share the machine's network.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import kafka
import pytest
from environment import REPOSITORY

from coldlog.command.main import JOBS, NAMED_JOBS

UID = 10001
ARCHIVE = REPOSITORY / "tests" / "golden" / "kafka-sample" / "archive"
BUILDER = os.environ.get("BUILDER", "docker")
IMAGE = os.environ.get("IMAGE", "coldlog")
PAGE = REPOSITORY / "docs" / "how-to" / "run-in-a-container.md"
TIER = "--set broker.id=1 --set archive.uri=/data/copies --set metadata.uri=/data/log"
WORDS = {
    "deepen_indexes": "--topics orders",
    "lookup_offsets": "--topic orders --partition 0 --timestamp 1700042400000",
    "list_offsets": "--topic orders --partition 0 --timestamp -1",
    "fetch_records": "--topic orders --partition 0 --max-records 2",
    "replay_topics": "--topics orders --output-table /data/replayed",
    "copy_segments": f"{TIER} --set copy.log_directories=/data/broker",
    "expire_segments": f"{TIER} --dry-run",
}
"""What a job needs besides the places of archive and tables."""


def _builder(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [*shlex.split(BUILDER), *arguments]
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=500)


def _on(tables: Path, *arguments: str) -> list[str]:
    """The words of `run` that mount the archive and the tables."""
    places = ["-e", "COLDLOG_ARCHIVE__URI=/archive", "-e", "COLDLOG_WAREHOUSE__URI=/data/warehouse"]
    return [
        "run",
        "--init",
        "--network=host",
        "-v",
        f"{ARCHIVE}:/archive:ro",
        "-v",
        f"{tables}:/data",
        *places,
        *arguments,
    ]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the container's user, with the tables of the sample: the page's own commands make them."""
    folder = tmp_path_factory.mktemp("image")
    block = (
        PAGE.read_text(encoding="utf-8").partition("## Index and ask")[2].partition("    mkdir")[2].partition("\n\n")[0]
    )
    script = f"mkdir{block}".replace("sudo ", "").replace("/mnt/tiered", shlex.quote(str(ARCHIVE)))
    script = script.replace("docker run", f"{BUILDER} run --network=host")
    ran = subprocess.run(["bash", "-ec", script], cwd=folder, capture_output=True, text=True, check=False, timeout=500)
    assert (ran.returncode, " 2592 " in ran.stdout) == (0, True), ran.stdout + ran.stderr
    (folder / "tables" / "broker").mkdir()
    os.chown(folder / "tables" / "broker", UID, UID)
    return folder / "tables"


def test_its_user_is_not_root_and_owns_what_jobs_write(tables: Path) -> None:
    told = _builder("run", "--rm", "--entrypoint=id", IMAGE, "-u").stdout
    assert (int(told), (tables / "warehouse").stat().st_uid) == (UID, UID)


@pytest.mark.parametrize("job", [name for name, _ in JOBS.values()] + list(NAMED_JOBS))
def test_every_job_runs(tables: Path, job: str) -> None:
    ran = _builder(*_on(tables, "--rm", IMAGE, job, *shlex.split(WORDS.get(job, ""))), check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.fixture
def endpoint(tables: Path) -> Iterator[tuple[str, str]]:
    """The container and the address of an endpoint that is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    served = _builder(*_on(tables, "--detach", IMAGE, "serve", "--listen", address)).stdout.strip()
    try:
        yield served, address
    finally:
        _builder("rm", "--force", served)


def test_a_consumer_reads_from_its_endpoint_which_ends_when_it_is_stopped(endpoint: tuple[str, str]) -> None:
    container, address = endpoint
    _wait_for(address)
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, consumer_timeout_ms=30_000)
    partition = kafka.TopicPartition("orders", 0)
    consumer.assign([partition])
    consumer.seek(partition, 2592)
    record = next(consumer)
    consumer.close()
    assert (record.offset, record.timestamp, record.key) == (2592, 1700043201130, b"k222")
    _builder("stop", "--time", "60", container)
    assert json.loads(_builder("inspect", container).stdout)[0]["State"]["ExitCode"] == 0


def _wait_for(address: str) -> None:
    host, port = address.split(":")
    end = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            assert time.monotonic() < end, f"nothing listens at {address}"
            time.sleep(0.2)
        else:
            return
