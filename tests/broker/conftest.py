"""conftest of tests/broker: one broker and one play for all tests that ask a living Kafka."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker.scenario import Scenario
from broker.tiered_broker import TieredBroker, running_broker
from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.brokers.kafka_client import Cluster, open_cluster
from coldlog.indexing.events.live_topic import TopicSource
from coldlog.indexing.events.read_events import ReadSummary, read_events
from coldlog.indexing.pipeline import run_pipeline
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job
from coldlog.runtime.settings import Settings
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.warehouse import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """After both acts: the first reading of the live topic lay between them, the second behind them."""

    scenario: Scenario
    events: Warehouse
    first: ReadSummary
    first_copy: Path
    second: ReadSummary
    second_copy: Path
    topics_before: frozenset[str]
    topics_after: frozenset[str]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredBroker]:
    """The broker; one that does not come up fails every test that wants it."""
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def cluster(broker: TieredBroker) -> Cluster:
    """The broker as coldlog is told of it."""
    return open_cluster(broker.bootstrap_servers, 120_000, None)


def events_only(spark: SparkSession, location: Path) -> Warehouse:
    """A warehouse with the tables that a reading of the topic needs."""
    warehouse = Warehouse(spark=spark, uri=str(location))
    for table in (SEGMENT_EVENTS, QUARANTINE):
        spark.sql(table.create_statement(warehouse.identifier(table), warehouse.location(table)))
    return warehouse


@pytest.fixture(scope="session")
def played(
    broker: TieredBroker, cluster: Cluster, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Played:
    """Both acts, with a reading of the live topic behind each."""
    scenario, folder = Scenario(broker=broker), tmp_path_factory.mktemp("played")
    events = events_only(spark, folder / "warehouse")
    source = TopicSource(cluster=cluster, topic=METADATA_TOPIC)
    scenario.play_first_act()
    topics_before = broker.topics()
    first = read_events(events, source)
    first_copy = scenario.copy_metadata_logs(folder / "first")
    scenario.play_second_act()
    second = read_events(events, source)
    second_copy = scenario.copy_metadata_logs(folder / "second")
    return Played(
        scenario=scenario,
        events=events,
        first=first,
        first_copy=first_copy,
        second=second,
        second_copy=second_copy,
        topics_before=topics_before,
        topics_after=broker.topics(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """The whole pipeline's warehouse, with the settings of the run and what it told."""

    settings: Settings
    warehouse: Warehouse
    progress: str


@pytest.fixture(scope="session")
def indexed(played: Played, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    """run_pipeline with the live topic and log start offsets from the broker, with settings alone."""
    broker, location = played.scenario.broker, tmp_path_factory.mktemp("indexed") / "warehouse"
    settings = load_settings(
        "local",
        [
            f"archive.uri={broker.tier}",
            f"warehouse.uri={location}",
            "metadata.source=topic",
            f"metadata.bootstrap_servers={broker.bootstrap_servers}",
            f"log_start_offsets.bootstrap_servers={broker.bootstrap_servers}",
        ],
    )
    progress = io.StringIO()
    console = Console(progress=progress, results=io.StringIO())
    run_pipeline(Job(spark=spark, settings=settings, arguments=argparse.Namespace(), console=console))
    warehouse = Warehouse(spark=spark, uri=str(location))
    return Indexed(settings=settings, warehouse=warehouse, progress=progress.getvalue())
