"""Test that every way of asking answers from a damaged warehouse as from a sound one, or names the damaged file.

`make test-damage SEED=7 TRIALS=500` makes other trials, and more of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from damage.damaged_tables import (
    DAMAGES,
    Ask,
    Question,
    copy_with_checkpoints,
    count_kinds,
    fetched_tables,
    forget_checksums,
    function_answers,
    iter_trials,
    read_archived,
    reader_answers,
)
from worlds.golden_warehouse import golden_partitions, golden_queries

SEED, TRIALS = int(os.environ.get("SEED", "24")), os.environ.get("TRIALS")
PLACES = [
    (str(each["topic"]), int(str(each["partition"])))
    for each in golden_partitions()
    if int(str(each["archive_end"])) >= 0
]
_SPECIAL = (-2, -3, -5)


def _questions(count: int) -> list[Question]:
    """Times of the broker's queries."""
    queries = random.Random(1).sample(golden_queries(), count)
    return [(str(each["topic"]), int(str(each["partition"])), int(str(each["ts"]))) for each in queries]


def _offsets(spark: SparkSession, uri: str, archive: str) -> Ask:
    return partial(
        reader_answers, uri, _questions(100) + [(*place, special) for place in PLACES for special in _SPECIAL]
    )


def _fetches(spark: SparkSession, uri: str, archive: str) -> Ask:
    return partial(fetched_tables, uri, PLACES[:6])


def _records(spark: SparkSession, uri: str, archive: str) -> Ask:
    return partial(read_archived, uri, archive, PLACES[:3])


def _functions(spark: SparkSession, uri: str, archive: str) -> Ask:
    return partial(function_answers, spark, uri, _questions(20))


WAYS: dict[str, tuple[Callable[[SparkSession, str, str], Ask], int, int]] = {
    "offsets": (_offsets, len(DAMAGES), 1),
    "fetches": (_fetches, 2, 1),
    "records": (_records, 2, 1),
    "functions": (_functions, 1, 8),
}
"""How to ask, how many trials of each kind of file, and by how many fewer with TRIALS, because they take longer. Of
offsets, each kind of file is damaged in every way; of the others, each kind of file and each way are tried."""


@pytest.mark.parametrize("has_checksums", [True, False], ids=["with checksums", "as in an object store"])
@pytest.mark.parametrize("way", WAYS)
def test_answers_are_right_or_name_the_damaged_file(
    spark: SparkSession, golden_uri: str, golden_archive: Path, tmp_path: Path, way: str, has_checksums: bool
) -> None:
    """Trials by seed: a file is flipped at a bit, cut, emptied, removed, or gets the content of another."""
    warehouse = copy_with_checkpoints(golden_uri, tmp_path / "warehouse")
    if not has_checksums:
        forget_checksums(warehouse)
    make, turns, fewer = WAYS[way]
    ask = make(spark, str(warehouse), str(golden_archive))
    truth = ask()
    count = turns * count_kinds(warehouse) if TRIALS is None else int(TRIALS) // fewer
    trials = list(iter_trials(warehouse, ask, seed=SEED, count=count))
    print(f"{way}: {len(trials)} trials, {sum(trial.error is not None for trial in trials)} refused")
    assert [str(trial) for trial in trials if not trial.is_right(truth)] == []
    assert sum(trial.error is not None for trial in trials) >= max(1, len(trials) // 10)
