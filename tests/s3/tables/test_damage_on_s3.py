"""Test that readers of a warehouse in a bucket answer as from a sound one, or name the damaged object or its table.

`make test-damage SEED=7 TRIALS=500` makes other trials, and more of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from damage.damaged_tables import (
    Ask,
    copy_with_checkpoints,
    count_kinds,
    fetched_tables,
    forget_checksums,
    iter_trials,
    reader_answers,
)
from servers.s3_server import Bucket
from worlds.golden_warehouse import golden_queries

SEED, TRIALS = int(os.environ.get("SEED", "28")), os.environ.get("TRIALS")


def _offsets(uri: str) -> object:
    asked = random.Random(1).sample(golden_queries(), 10)
    return reader_answers(
        uri, [(str(each["topic"]), int(str(each["partition"])), int(str(each["ts"]))) for each in asked]
    )


def _fetches(uri: str) -> object:
    places = {(str(each["topic"]), int(str(each["partition"]))) for each in golden_queries()[:400:200]}
    return fetched_tables(uri, sorted(places))


@pytest.mark.parametrize("asked", [_offsets, _fetches])
def test_answers_are_right_or_name_the_damaged_object(
    golden_uri: str, bucket: Bucket, tmp_path: Path, asked: Callable[[str], object]
) -> None:
    """Trials by seed: an object is flipped at a bit, cut, emptied, removed, or gets the content of another. One of each
    kind of object, or some of TRIALS: the server is slow."""
    warehouse = copy_with_checkpoints(golden_uri, tmp_path / "warehouse")
    forget_checksums(warehouse)
    ask = _ask_mirrored(warehouse, bucket, asked)
    truth = ask()
    count = count_kinds(warehouse) if TRIALS is None else int(TRIALS) // 6
    trials = list(iter_trials(warehouse, ask, seed=SEED, count=count))
    print(f"{asked.__name__}: {len(trials)} trials, {sum(trial.error is not None for trial in trials)} refused")
    assert [str(trial) for trial in trials if not trial.is_right(truth)] == []
    assert sum(trial.error is not None for trial in trials) >= max(1, len(trials) // 10)


def _ask_mirrored(folder: Path, bucket: Bucket, asked: Callable[[str], object]) -> Ask:
    """Bring what changed in the folder into the bucket, then ask the bucket."""
    prefix = str(folder).strip("/")  # so that an error about the bucket contains the folder's path
    stored: dict[str, bytes] = {}

    def ask() -> object:
        present = {f"{prefix}/{each.relative_to(folder)}": each for each in folder.rglob("*") if each.is_file()}
        contents = {key: path.read_bytes() for key, path in present.items()}
        bucket.put({key: content for key, content in contents.items() if stored.get(key) != content})
        bucket.delete(*(stored.keys() - contents.keys()))
        stored.clear()
        stored.update(contents)
        return asked(bucket.uri(prefix))

    return ask
