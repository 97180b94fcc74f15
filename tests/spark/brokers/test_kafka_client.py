"""Brokers that do not answer, options of the client, and what may be told of them; no broker is needed."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.brokers.kafka_client import Cluster, describe_topics, iter_records, open_cluster
from coldlog.errors import RetriableError, UsageError
from coldlog.indexing.events.event_sources import RAW_DDL
from coldlog.indexing.events.live_topic import OffsetRange, TopicSource
from coldlog.indexing.events.read_events import read_events
from coldlog.indexing.sources import open_event_source
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import rows_in

pytestmark = pytest.mark.usefixtures("kafka_leftovers")

TIMEOUT_MS = 250
CONSUMER_TIMEOUT_MS = 600
"""A consumer must wait longer for an answer than brokers for records, which is 500 ms."""
SECRET = "tell-nobody"


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def _options(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT"])
def test_server_that_says_nothing_is_given_up_in_time(silent: str, tmp_path: Path, protocol: str) -> None:
    lines = [f"security.protocol={protocol}"]
    if protocol.startswith("SASL"):
        lines += ["sasl.mechanism=PLAIN", "sasl.plain.username=u", f"sasl.plain.password={SECRET}"]
    cluster = open_cluster(silent, TIMEOUT_MS, _options(tmp_path / "client.properties", *lines))
    start = time.monotonic()
    with pytest.raises(RetriableError, match=f"{silent} did not answer for topic events within 250 ms") as told:
        describe_topics(cluster, ["events"])
    assert time.monotonic() - start < 30
    assert SECRET not in repr((told.value, told.value.__cause__, cluster))
    if protocol != "SSL":  # the client waits for a handshake as long as the connection lasts
        assert not [thread.name for thread in threading.enumerate() if "kafka" in thread.name]


def test_address_without_a_broker_is_given_up_in_time(nobody: str) -> None:
    cluster = open_cluster(nobody, CONSUMER_TIMEOUT_MS, None)
    start = time.monotonic()
    with pytest.raises(RetriableError, match=f"{nobody} did not answer for topic events"):
        TopicSource(cluster=cluster, topic="events").plan_ranges({})
    with pytest.raises(RetriableError, match=f"{nobody} did not answer for partition 2 of topic events"):
        next(iter_records(cluster, "events", 2, 0, 1))
    assert time.monotonic() - start < 30


def test_broker_that_falls_silent_while_the_topic_is_read_leaves_the_tables_as_they_were(
    spark: SparkSession, warehouse: Path, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Warehouse(spark=spark, uri=str(warehouse))
    tables.create_missing()
    ranges = [OffsetRange(partition=partition, from_offset=0, end_offset=5) for partition in (0, 1)]
    monkeypatch.setattr(TopicSource, "plan_ranges", lambda *_: ranges)
    source = TopicSource(cluster=open_cluster(nobody, CONSUMER_TIMEOUT_MS, None), topic="events")
    with pytest.raises(RetriableError, match=r"did not answer for partition \d of topic events"):
        read_events(tables, source)
    assert (len(rows_in(tables, SEGMENT_EVENTS)), len(rows_in(tables, QUARANTINE))) == (0, 0)
    assert source.read(spark, {}).schema == spark.createDataFrame([], RAW_DDL).schema


def test_source_can_be_pickled_and_shows_no_secret(tmp_path: Path) -> None:
    path = _options(tmp_path / "c", "# ours", "", f"sasl_plain_password = {SECRET}", "retry.backoff.ms=50")
    settings = load_settings(
        "local",
        [
            "metadata.source=topic",
            "metadata.bootstrap_servers=a:1, b:2",
            "metadata.topic=events",
            "metadata.timeout_ms=2000",
            f"metadata.client_config={path}",
        ],
    )
    source = open_event_source(settings)
    assert source == TopicSource(
        cluster=Cluster(
            bootstrap_servers="a:1, b:2",
            timeout_ms=2000,
            options={"sasl_plain_password": SECRET, "retry_backoff_ms": "50"},
        ),
        topic="events",
    )
    assert source is not None
    assert pickle.loads(pickle.dumps(source)) == source
    assert SECRET not in f"{source!r} {source.uri} {settings!r}"


def test_source_without_an_address_is_refused() -> None:
    with pytest.raises(UsageError, match="give --set metadata.bootstrap_servers=host:port"):
        open_event_source(load_settings("local", ["metadata.source=topic"]))
