"""Test that replay_topics goes on in a broker's log directory where the archive ends: each record once."""

from __future__ import annotations

from pathlib import Path

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint
from coldlog.records.source.options import read_options
from coldlog.replay.runs.replay import ReplayOptions, replay
from coldlog.replay.runs.replay_sinks import DeltaSink
from coldlog.replay.runs.replay_state import ReplayStates
from coldlog.tables.delta.warehouse import Warehouse
from servers.broker_tails import write_broker_tails
from virtual_clock import VirtualClock


def test_runs_of_a_replay_have_each_committed_record_of_the_whole_log_once(
    golden: Warehouse, golden_archive: Path, tmp_path: Path
) -> None:
    """The first run ends at an open transaction in the directory; the next one begins there."""
    place = ("payments", 1)
    tail = write_broker_tails(tmp_path / "log", {"payments"})[place]
    given = {"warehouse.uri": golden.uri, "archive.uri": str(golden_archive), "fetch.log_directory": tmp_path / "log"}
    start = tail.begin - 100
    given |= {"assign": '{"payments":[1]}', "startingoffsets": f'{{"payments":{{"1":{start}}}}}'}
    source = read_options(
        {**{key: str(value) for key, value in given.items()}, "kafka.isolation.level": "read_committed"}
    )
    sink = DeltaSink(spark=golden.spark, uri=str(tmp_path / "sink"))
    states, options = ReplayStates.of_warehouse(str(tmp_path / "states")), ReplayOptions(source=source, name="nightly")
    counts = []
    for high_watermark in (tail.active, tail.end):
        write_offset_checkpoint(tmp_path / "log" / HIGH_WATERMARKS, {place: high_watermark})
        counts.append(replay(golden.spark, options, sink, states, VirtualClock()).record_count)
    rows = golden.spark.read.format("delta").load(sink.uri).select("sequence", "offset").toArrow().to_pydict()
    assert sorted(rows["sequence"]) == list(range(sum(counts)))
    whole = [offset for offset in tail.whole_log(place, is_committed=True) if offset >= start]
    assert sorted(rows["offset"]) == whole
    assert counts[0] == sum(offset < tail.active - 4 for offset in whole)
