"""Does SIGTERM end an endpoint in its time, whatever strangers and the store do?"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from endpoint.conftest import serving
from endpoint.support.raw_client import RawClient, connected, fetch, framed, list_offsets, message
from servers.certificates import write_certificate
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import Bucket

_LIBRARY = Path(__file__).parents[2] / "lib"
_DRAIN_S, _MORE_S = 1, 5
_HELLO = b"\x16\3\1\2\0\1\0\1\xfc\3\3"
"""The beginning of a handshake of TLS."""
_RECORDS = framed(1, 12, fetch(12, [("payments", 0, 0)], max_bytes=50 << 20, partition_max_bytes=50 << 20))
_STUCK = """
import threading
from coldlog.serve import process_end

process_end._EXIT_S = 0.5
process_end.limit_end(0.0)
threading.Event().wait()
"""


@contextmanager
def _private(port: int) -> Iterator[RawClient]:
    """A connection with TLS, which takes any certificate."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    with connected(port) as client, anybody.wrap_socket(client.connection) as connection:
        yield RawClient(connection)


def _commit() -> bytes:
    """Commit an offset without a group."""
    offset = message(8, 9, "OffsetCommitRequestPartition", partition_index=0, committed_offset=5, committed_metadata="")
    offsets = message(8, 9, "OffsetCommitRequestTopic", name="orders", partitions=(offset,))
    member = {"group_id": "group", "member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}
    return framed(8, 9, message(8, 9, "OffsetCommitRequest", **member, topics=(offsets,)))


def test_an_endpoint_ends_in_time_though_clients_and_its_tables_hang(
    golden_bucket: Bucket, golden_archive: Path, s3_access: S3Proxy, tmp_path: Path
) -> None:
    settings = (
        f"serve.drain_seconds={_DRAIN_S}",
        "serve.refresh_seconds=1",
        "serve.committed_offsets=table",
        f"serve.tls_certificate={write_certificate(tmp_path)}",
    )
    with (
        serving(tmp_path / "notes", golden_bucket.uri("warehouse"), golden_archive, *settings) as endpoint,
        connected(endpoint.port) as stranger,
        _private(endpoint.port) as slow,
        _private(endpoint.port) as first,
        _private(endpoint.port) as second,
        _private(endpoint.port) as third,
    ):
        stranger.connection.sendall(_HELLO)
        slow.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connection.sendall(_RECORDS * 10)  # It reads none.
        assert first.ask(2, 11, list_offsets([("orders", 0, -1)])).topics, "the topics are known"
        s3_access.strikes = lambda _: True
        s3_access.faults = [Fault(hangs=True)] * 1000
        first.connection.sendall(framed(2, 11, list_offsets([("orders", 0, 1_700_042_400_000)])))
        second.connection.sendall(framed(1, 12, fetch(12, [("late.events", 0, 0)])))
        third.connection.sendall(_commit())
        time.sleep(2)
        hanging = 1000 - len(s3_access.faults)
        began = time.monotonic()
        assert endpoint.end() == 0
        assert time.monotonic() - began < _DRAIN_S + _MORE_S
    assert hanging >= 3, "the refresh, and what clients asked"


def test_an_endpoint_that_does_not_end_says_where_its_threads_are_and_is_ended() -> None:
    environment = {**os.environ, "PYTHONPATH": str(_LIBRARY)}
    ended = subprocess.run(
        [sys.executable, "-c", _STUCK], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "most recent call first" in ended.stderr
