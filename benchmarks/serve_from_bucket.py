"""serve-bucket: how fast does one client read from `coldlog serve` over a bucket that takes its time?

moto's server holds the archive, and a proxy before it adds 50 ms to each answer. The tables are in a folder. One
endpoint reads ahead, one does not; librdkafka reads the same partition from each, in turns. All of it runs on this
machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.shared.generated_logs import MIB, LogShape, get_archive, topic_of
from benchmarks.shared.measuring import MEGABYTE, Figure
from benchmarks.shared.sizes import Sizes

from builders.payload_codecs import Codec
from coldlog.model.list_offsets import SpecialTimestamp
from endpoint.conftest import serving
from endpoint.support.raw_client import connected, list_offsets
from servers.s3_proxy import running_proxy
from servers.s3_server import running_moto

_ROOT = Path(__file__).resolve().parent.parent
_DELAY_S = 0.05
_SHAPE = LogShape(
    log_bytes=64 * MIB, codecs=(Codec.NONE,), segment_bytes=8 * MIB, template_bytes=8 * MIB, partition_count=1
)
_TOPIC = topic_of(Codec.NONE)
_WAYS = {"ahead": (), "not ahead": ("serve.read_ahead_bytes=0",)}


def measure_serve_from_bucket(sizes: Sizes) -> Iterator[Figure]:
    """MB/s with and without reading ahead."""
    archive = get_archive(_SHAPE).directory
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        warehouse = _index(archive, folder)
        server = stack.enter_context(running_moto(folder))
        bucket = server.make_bucket()
        bucket.put_directory(archive, "archive")
        proxy = stack.enter_context(running_proxy(server.endpoint))
        os.environ.update(server.environment(proxy.endpoint))
        proxy.delay_s = _DELAY_S
        ports = {
            way: stack.enter_context(serving(folder / way, str(warehouse), bucket.uri("archive"), *settings)).port
            for way, settings in _WAYS.items()
        }
        rates: dict[str, list[float]] = {way: [] for way in ports}
        for turn in range(sizes.turns + 1):
            for way, port in ports.items():
                rate = _read(port)
                if turn > 0:
                    rates[way].append(rate)
        ahead, alone = (statistics.median(each) for each in rates.values())
        yield Figure(
            benchmark="serve-bucket",
            what=f"records, {_DELAY_S * 1000:.0f} ms a read",
            on="1 client",
            value=ahead,
            unit="MB/s",
            against=f"without reading ahead {alone:,.1f}",
            ratio=ahead / alone,
        )


def _index(archive: Path, folder: Path) -> Path:
    warehouse = folder / "warehouse"
    settings = (f"archive.uri={archive}", f"warehouse.uri={warehouse}", "index.depth=batch")
    command = [str(_ROOT / "spark-submit.sh"), "run_pipeline", *(part for each in settings for part in ("--set", each))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return warehouse


def _read(port: int) -> float:
    """Read the partition with a client of its own; return MB/s."""
    with connected(port) as client:
        answer = client.ask(2, 11, list_offsets([(_TOPIC, 0, int(SpecialTimestamp.LATEST))]))
    end = answer.topics[0].partitions[0].offset
    program = str(Path(__file__).parent / "shared" / "consume.py")
    command = [sys.executable, program, f"127.0.0.1:{port}", _TOPIC, f"0:{end}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client_process:
        assert client_process.stdout is not None
        if client_process.stdout.readline() != "ready\n":
            raise ChildProcessError("no client")
        found = json.loads(client_process.communicate("\n")[0])
    return float(found["bytes"] / MEGABYTE / found["seconds"])
