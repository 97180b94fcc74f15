"""Test that many partitions are answered together as they are one by one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from coldlog.lookups.list_offsets import ListOffsets
from coldlog.lookups.questions import ANSWER_COLUMNS, Answers, AskedPartitions, Questions
from coldlog.lookups.search import many_partitions
from coldlog.lookups.search.many_partitions import answer_many, first_at_or_after
from coldlog.lookups.served_index import ServedIndex, WarehouseFiles, list_warehouse_files
from coldlog.model.list_offsets import NEWEST_VERSION, ErrorCode, SpecialTimestamp
from coldlog.model.states import IndexDepth, OnGap
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from tables.scattered_tables import Row, write, write_file

Place = tuple[str, int]
TOPICS, PARTITIONS = ("clicks", "orders", "payments", "zoo"), 12
LENGTH = 10
"""Offsets of a segment; a record's timestamp is its offset, but for some that are later."""


def _write_world(warehouse: Path, random: Random) -> None:
    """Partitions with up to five segments. Some have gaps, segments at batch depth, an older incarnation, replaced
    builds, or the directory of another partition under their name."""
    tables: dict[str, list[Row]] = {table.name: [] for table in (PARTITION_METADATA, SEGMENTS, TIME_INDEX)}
    batches: list[Row] = []
    for topic in TOPICS:
        for partition in range(PARTITIONS):
            _write_partition({"topic": topic, "partition": partition}, tables, batches, random)
    for table in (PARTITION_METADATA, SEGMENTS, TIME_INDEX):
        write(warehouse, table, tables[table.name])
    write(warehouse, OFFSET_INDEX, batches)


def _write_partition(place: Row, tables: dict[str, list[Row]], batches: list[Row], random: Random) -> None:
    topic_id, count = f"id of {place['topic']}", random.randrange(6)
    maximum, first = -1, random.choice((0, 0, 30))
    for number in range(count):
        start = first + number * LENGTH
        depth = random.choices((IndexDepth.RECORD, IndexDepth.BATCH), (9, 1))[0]
        # A copied directory: the same segment ids in several partitions.
        segment_id = f"segment {number}" if random.random() < 0.2 else f"{place['topic']}-{place['partition']}-{number}"
        build = random.choice((1, 2))
        key: Row = {**place, "segment_id": segment_id}
        stairs: list[Row] = []
        for offset in range(start, start + LENGTH):
            timestamp_ms = offset + random.choice((0, 0, 0, 15))
            if timestamp_ms > maximum:
                maximum = timestamp_ms
                stairs.append({"offset": offset, "timestamp_ms": timestamp_ms, "leader_epoch": number})
        if depth is IndexDepth.RECORD:
            for other in (build, 3):  # rows of a build that is not served have other times
                tables[TIME_INDEX.name] += [
                    {**key, **row, "build_number": other, "timestamp_ms": int(str(row["timestamp_ms"])) - (other == 3)}
                    for row in stairs
                ]
        else:
            batches.append(
                {**key, "build_number": build, "base_offset": start, "last_offset": start + LENGTH - 1}
                | {"position": 0, "size_bytes": 100, "running_max_timestamp_ms": maximum}
            )
        served: Row = {"served_build_number": build, "served_index_depth": depth.value, "served_from_offset": start}
        maxima: Row = dict.fromkeys(("running_max_timestamp_ms", "broker_running_max_timestamp_ms"), maximum)
        tables[SEGMENTS.name].append(
            {**key, **served, **maxima, "topic_id": topic_id}
            | {"start_offset": start, "end_offset": start + LENGTH - 1, "served_to_offset": start + LENGTH - 1}
        )
    end = first + count * LENGTH
    gap = {"from_offset": first, "to_offset": first + 3, "max_timestamp_bound_ms": 20}
    facts: Row = {
        "topic_id": topic_id,
        "is_current": True,
        "earliest_offset": random.choice((None, first)),
        "log_start_offset": random.choice((None, first)),
        "log_start_source": random.choice(("metadata", "first_segment")),
        "latest_tiered_offset": end - 1 if count else None,
        "max_timestamp_ms": maximum if count else None,
        "finished_max_timestamp_ms": random.choice((None, maximum, maximum + 3)),
        "stable_offset": random.choice((None, end, max(first, end - 4))),
        "leader_epoch_lineage": [{"leader_epoch": 4, "start_offset": first}] if random.random() < 0.7 else [],
        "unserved_ranges": random.choices(([], [gap], None), (8, 1, 1))[0],
    }
    rows = tables[PARTITION_METADATA.name]
    rows.append({**place, **facts})
    if random.random() < 0.2:
        rows.append({**place, **facts, "topic_id": "older", "is_current": False, "latest_tiered_offset": 999})


@pytest.fixture(scope="module", params=range(6))
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WarehouseFiles:
    """The tables of a drawn world."""
    warehouse = tmp_path_factory.mktemp("many")
    _write_world(warehouse, Random(request.param))
    return list_warehouse_files(str(warehouse))


def _questions(random: Random, count: int, *, most_specials: float) -> Questions:
    places = [(random.choice((*TOPICS, "unknown")), random.randrange(PARTITIONS + 1)) for _ in range(count)]
    specials = [int(each) for each in SpecialTimestamp]
    times = [random.choice(specials) if random.random() < most_specials else random.randrange(90) for _ in places]
    return Questions(
        topics=pa.array([topic for topic, _ in places]),
        partitions=np.array([partition for _, partition in places]),
        timestamps_ms=np.array(times),
        leader_epochs=np.array([random.choice((-1, -1, -1, 3, 4, 5)) for _ in places]),
        is_committed=np.array([random.random() < 0.3 for _ in places]),
        versions=np.array([random.choice((1, 3, 4, NEWEST_VERSION)) for _ in places]),
        is_invalid=np.array([random.random() < 0.02 for _ in places]),
    )


def _rows(answers: Answers) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(answers, name).tolist() for name in ANSWER_COLUMNS), strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_many_partitions_are_answered_as_each_of_them(
    files: WarehouseFiles, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    questions = _questions(random, 300, most_specials=random.choice((0, 0.02)))
    options = {"broker_compatible": seed % 4 == 3, "older_incarnations": seed % 4 == 2}
    on_gap = random.choice(list(OnGap))
    with closing(ServedIndex(files, **options)) as index:
        monkeypatch.setattr(many_partitions, "_LEAST_PARTITIONS", 1_000)
        one_by_one = ListOffsets(index, on_gap=on_gap).answer(questions)
    with closing(ServedIndex(files, **options)) as index:
        monkeypatch.setattr(many_partitions, "_LEAST_PARTITIONS", 2)
        monkeypatch.setattr(many_partitions, "_AT_ONCE", random.choice((1, 5, 256)))
        monkeypatch.setattr(many_partitions, "_MOST_REQUESTS", random.choice((2, 100)))
        monkeypatch.setattr(many_partitions, "_MOST_SEGMENTS", random.choice((20, 1_000)))
        together = ListOffsets(index, on_gap=on_gap).answer(questions)
    assert _rows(together) == _rows(one_by_one)


def test_partitions_that_tables_decide_are_answered_together_and_others_are_named(files: WarehouseFiles) -> None:
    questions = _questions(Random(1), 400, most_specials=0.02)
    asked = AskedPartitions.of(questions, np.flatnonzero(~questions.is_invalid))
    reported = list[int]()
    with closing(ServedIndex(files)) as index:
        left = answer_many(index, questions, asked, lambda where, _: reported.extend(where.tolist()))
        of_others = [where for number in left for where in asked.requests_of(number).tolist()]
        assert sorted(reported + of_others) == np.flatnonzero(~questions.is_invalid).tolist()
        for number in set(range(len(asked))) - set(left):
            facts = index.find_facts(asked.topics[number], asked.numbers[number])
            assert facts is not None
            assert not facts.has_gaps
        assert 15 < len(left) < len(asked) - 15


def test_only_parts_of_the_tables_that_may_have_an_answer_are_read(tmp_path: Path) -> None:
    """Each of these files has one partition, or one segment of it."""
    topics = TOPICS[1:3]
    for topic in topics:
        for partition in range(PARTITIONS):
            tables: dict[str, list[Row]] = {table.name: [] for table in (PARTITION_METADATA, SEGMENTS, TIME_INDEX)}
            place: Row = {"topic": topic, "partition": partition}
            for number in range(2):
                start = number * LENGTH
                key: Row = {**place, "segment_id": f"{topic}-{partition}-{number}"}
                stair: Row = {"build_number": 1, "offset": start, "timestamp_ms": start, "leader_epoch": 0}
                served: Row = {"served_build_number": 1, "served_index_depth": "record", "served_from_offset": start}
                maxima: Row = dict.fromkeys(("running_max_timestamp_ms", "broker_running_max_timestamp_ms"), start)
                tables[SEGMENTS.name].append({**key, **served, **maxima, "end_offset": start + LENGTH - 1})
                write_file(tmp_path, TIME_INDEX, [{**key, **stair}])
            tables[PARTITION_METADATA.name].append({**place, "is_current": True, "unserved_ranges": []})
            for table in (PARTITION_METADATA, SEGMENTS):
                write_file(tmp_path, table, tables[table.name])
    write(tmp_path, OFFSET_INDEX, [])
    chosen = [(topic, partition) for topic in topics for partition in range(PARTITIONS) if partition % 4]
    count = len(chosen)
    questions = Questions(
        topics=pa.array([topic for topic, _ in chosen]),
        partitions=np.array([partition for _, partition in chosen]),
        timestamps_ms=np.full(count, LENGTH - 1),
        leader_epochs=np.full(count, -1),
        is_committed=np.zeros(count, dtype=np.bool_),
        versions=np.full(count, NEWEST_VERSION),
        is_invalid=np.zeros(count, dtype=np.bool_),
    )
    with closing(ServedIndex(list_warehouse_files(str(tmp_path)))) as index:
        answers = ListOffsets(index).answer(questions)
        assert answers.offsets.tolist() == [LENGTH] * count
        assert set(answers.errors.tolist()) == {ErrorCode.NONE}
        assert index.rows_read == count * (1 + 2 + 1), "of each partition its row, its segments and one stair"


def test_first_place_at_or_after_is_found_in_each_range() -> None:
    random = Random(5)
    for _ in range(200):
        values, first, end, sought, expected = list[int](), [], [], [], []
        for _ in range(random.randrange(6)):
            piece = sorted(random.choices(range(20), k=random.randrange(9)))
            for _ in range(random.randrange(3)):
                sought.append(random.randrange(-1, 22))
                first.append(len(values))
                end.append(len(values) + len(piece))
                expected.append(first[-1] + sum(each < sought[-1] for each in piece))
            values += piece
        columns = (np.array(each, dtype=np.int64) for each in (values, first, end, sought))
        assert first_at_or_after(*columns).tolist() == expected
