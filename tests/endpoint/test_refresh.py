"""Do clients go on reading while the archive and its tables change?"""

from __future__ import annotations

import shutil
from pathlib import Path

import confluent_kafka

from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.files.table_files import list_table_files
from endpoint.conftest import serving
from endpoint.support.raw_client import connected, fetch, list_offsets
from worlds.staged_archive import START_MS, STREAMED, STREAMED_LATER, show_stage

_PATIENCE_S = 60
Found = dict[tuple[str, int], list[int]]


def _expected(counts: tuple[int, ...], committed: list[int]) -> Found:
    return {
        **{("stream", partition): list(range(count)) for partition, count in enumerate(counts)},
        ("stream-transactions", 0): committed,
    }


def _read(consumer: confluent_kafka.Consumer, found: Found, count: int) -> None:
    """Read until there are so many records in all."""
    while sum(map(len, found.values())) < count:
        message = consumer.poll(_PATIENCE_S)
        assert message is not None
        assert message.error() is None, str(message.error())
        offset = message.offset()
        assert offset is not None
        found.setdefault((message.topic() or "", message.partition() or 0), []).append(offset)


def test_a_consumer_gets_what_is_archived_while_it_reads(stages: list[Path], tmp_path: Path) -> None:
    show_stage(tmp_path / "now", stages[0])
    places = f"{tmp_path}/now/warehouse", f"{tmp_path}/now/archive"
    with serving(tmp_path / "notes", *places, "serve.refresh_seconds=0.2") as endpoint:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": endpoint.address,
                "group.id": "reads-on",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 200,
            }
        )
        consumer.subscribe(["stream", "stream-transactions"])
        found: Found = {}
        _read(consumer, found, sum(STREAMED) + 1)
        assert found == _expected(STREAMED, [0])
        show_stage(tmp_path / "now", stages[1])
        _read(consumer, found, sum(STREAMED_LATER) + 5)
        assert found == _expected(STREAMED_LATER, [0, 1, 2, 5, 7])
        consumer.close()
        assert "cannot be read" not in endpoint.said()


def test_tables_that_were_vacuumed_since_are_opened_anew(stages: list[Path], tmp_path: Path) -> None:
    vacuumed = tmp_path / "vacuumed"
    shutil.copytree(stages[1], vacuumed)
    removed = [path for table in ALL_TABLES for path in _vacuum(vacuumed / "warehouse" / table.name, table)]
    assert {"segments", "partition_metadata"} <= {path.relative_to(vacuumed / "warehouse").parts[0] for path in removed}
    show_stage(tmp_path / "now", stages[0])
    places = f"{tmp_path}/now/warehouse", f"{tmp_path}/now/archive"
    with serving(tmp_path / "notes", *places, "serve.refresh_seconds=3600") as endpoint:
        show_stage(tmp_path / "now", vacuumed)
        with connected(endpoint.port) as client:
            answer = client.ask(1, 12, fetch(12, [("stream", 0, 30)]))
            (partition,) = answer.responses[0].partitions
            assert (int(partition.error_code), partition.high_watermark, bool(partition.records)) == (0, 40, True)
            answer = client.ask(2, 11, list_offsets([("stream", 0, START_MS + 35)]))
            assert answer.topics[0].partitions[0].offset == 35


def _vacuum(folder: Path, table: TableDefinition) -> list[Path]:
    """Remove the files that the newest version does not name."""
    named = {folder / path for path in list_table_files(str(folder), table, ()).paths}
    old = [path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts and path not in named]
    for path in old:
        path.unlink()
    return old
