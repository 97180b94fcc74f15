"""damaged_tables: what do readers without Spark say of a warehouse in which one file is damaged?

The answers of the undamaged warehouse are the truth. A trial damages one file of a copy, asks again, and puts the file
back: the answers are the same, or a ColdlogError names the file.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from coldlog.errors import ColdlogError, RetriableError
from coldlog.reader import OffsetReader
from coldlog.records.fetch.archive_tables import ArchiveTables, list_fetch_files
from coldlog.records.source.filters import RecordFilter
from coldlog.records.source.options import read_options
from coldlog.records.source.planning import open_reader, plan_reading
from coldlog.runtime.spark.spark_failures import explain_failure
from coldlog.sql import attach_warehouse
from coldlog.tables.delta.log_check import LOG_FOLDER, create_checkpoint
from coldlog.tables.delta.manifest import HELD_TABLES, MANIFEST_FOLDER, open_manifests, read_manifest, write_manifest

READ_TABLES = tuple(table.name for table in HELD_TABLES)
Question = tuple[str, int, int]
Ask = Callable[[], object]


def copy_with_checkpoints(uri: str, folder: Path) -> Path:
    """Copy a warehouse; some of its tables get a checkpoint, as maintenance writes it, so that commits before it are
    not needed."""
    shutil.copytree(uri, folder)
    for name in READ_TABLES[::2]:
        create_checkpoint(DeltaTable(folder / name), str(folder / name))
    return folder


def forget_published(warehouse: Path, table: str) -> None:
    """Take a table out of the manifests, as if it was made after them: the test changes it by hand."""
    manifests = open_manifests(str(warehouse))
    for path in (warehouse / "_manifest").glob("*.json"):
        manifest = read_manifest(manifests, str(warehouse), int(path.stem))
        assert manifest is not None
        manifests.remove(path.name)
        others = {name: published for name, published in manifest.tables.items() if name != table}
        assert write_manifest(manifests, replace(manifest, tables=others))


def forget_checksums(warehouse: Path) -> None:
    """Remove Hadoop's checksums, as if an object store held the files."""
    for each in warehouse.rglob(".*.crc"):
        each.unlink()


def list_damageable(warehouse: Path) -> list[Path]:
    """Every file of the tables that the readers open, and the manifests: data, commits, checkpoints, and the checksums
    beside them."""
    folders = (*READ_TABLES, MANIFEST_FOLDER)
    return sorted(each for name in folders for each in (warehouse / name).rglob("*") if each.is_file())


def count_kinds(warehouse: Path) -> int:
    """How many kinds of files `iter_trials` damages, each once in a turn."""
    return len({_kind_of(each) for each in list_damageable(warehouse) if each.stat().st_size})


def _kind_of(path: Path) -> str:
    if path.suffix == ".crc" and path.name.startswith("."):
        return f"checksums of {path.parent.name if path.parent.name.startswith('_') else 'data'}"
    if path.parent.name in READ_TABLES:
        return f"data{path.suffix}"
    return f"{path.parent.name} {'checkpoint' if 'checkpoint' in path.name else ''}{path.suffix}"


def _flip(path: Path, content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def _cut(path: Path, content: bytes, chance: random.Random) -> bytes:
    """Half of the cuts are between lines or sectors, where what is left looks whole."""
    ends = [at + 1 for at in range(len(content) - 1) if content[at : at + 1] == b"\n"]
    ends += range(512, len(content), 512)
    return content[: chance.choice(ends) if ends and chance.random() < 0.5 else chance.randrange(len(content))]


def _swap(path: Path, content: bytes, chance: random.Random) -> bytes:
    """The content of another file of the folder, such as an older commit."""
    others = [each for each in sorted(path.parent.glob(f"*{path.suffix}")) if each != path and each.is_file()]
    return chance.choice(others).read_bytes() if others else b""


DAMAGES: dict[str, Callable[[Path, bytes, random.Random], bytes | None]] = {
    "flipped": _flip,
    "cut": _cut,
    "emptied": lambda path, content, chance: b"",
    "removed": lambda path, content, chance: None,
    "swapped": _swap,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One file, damaged in one way, and what came of it: an answer, or the error."""

    path: Path
    damage: str
    has_checksums: bool = True
    answer: object = None
    error: BaseException | None = None

    def is_right(self, truth: object) -> bool:
        """The answer is the truth, or the error is coldlog's and names the file; without checksums, its table."""
        if self.error is None:
            return self.answer == truth
        place = self.path.parent.parent if self.path.parent.name == LOG_FOLDER else self.path.parent
        is_named = names_file(str(self.error), self.path) or (not self.has_checksums and str(place) in str(self.error))
        return isinstance(self.error, ColdlogError) and not isinstance(self.error, RetriableError) and is_named

    def __str__(self) -> str:
        found = "a wrong answer" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        return f"{self.path.parent.name}/{self.path.name} {self.damage}: {found[:300]}"


def names_file(text: str, path: Path) -> bool:
    """Whether a text names a file; for checksums, the file that they belong to."""
    return path.name in text or re.sub(r"^\.(.+)\.crc$", r"\1", path.name) in text


@contextmanager
def damaged(path: Path, damage: str, chance: random.Random) -> Iterator[None]:
    """One file is damaged meanwhile."""
    content = path.read_bytes()
    changed = DAMAGES[damage](path, content, chance)
    if changed is None:
        path.unlink()
    else:
        path.write_bytes(changed)
    try:
        yield
    finally:
        path.write_bytes(content)


def iter_trials(warehouse: Path, ask: Ask, seed: int, count: int) -> Iterator[Trial]:
    """Damage a file, ask, put the file back; kinds of files take turns, and so do damages of each."""
    chance, files = random.Random(seed), [each for each in list_damageable(warehouse) if each.stat().st_size]
    names, kinds = sorted(DAMAGES), sorted({_kind_of(each) for each in files})
    for number in range(count):
        turn, kind_number = divmod(number, len(kinds))
        kind, damage = kinds[kind_number], names[(turn + kind_number) % len(names)]
        path = chance.choice([each for each in files if _kind_of(each) == kind])
        trial = Trial(path=path, damage=damage, has_checksums=any("checksums" in each for each in kinds))
        with damaged(path, damage, chance):
            try:
                yield replace(trial, answer=ask())
            except BaseException as error:  # noqa: BLE001 - what may be raised is what is tested
                yield replace(trial, error=error)


def reader_answers(uri: str, questions: Sequence[Question]) -> list[dict[str, object]]:
    """All answers of a reader that is opened for them."""
    with OffsetReader(uri) as reader:
        return reader.list_offsets(questions)


def fetched_tables(uri: str, places: Sequence[tuple[str, int]]) -> str:
    """All that a fetcher knows from the tables of these partitions, as text."""
    tables = ArchiveTables(list_fetch_files(uri))
    try:
        known = []
        for place in places:
            archived = tables.partition(*place)
            assert archived is not None
            batches = [tables.batches(served) for served in archived.segments]
            known.append((archived, tables.aborted(archived), tables.find_quarantined(archived, 0, 1 << 62), batches))
        with np.printoptions(threshold=sys.maxsize):
            return str(known)
    finally:
        tables.close()


def read_archived(uri: str, archive: str, places: Sequence[tuple[str, int]]) -> pa.Table:
    """The records of these partitions, as the data source's planner and tasks read them."""
    batches: list[pa.RecordBatch] = []
    for topic, partition in places:
        assign = f'{{"{topic}":[{partition}]}}'
        options = read_options({"warehouse.uri": uri, "archive.uri": archive, "assign": assign})
        tasks, reader = plan_reading(options, RecordFilter()), open_reader(options, lambda _: None)
        batches += [batch for task in tasks for batch in reader.iter_rows(task)]
    return pa.Table.from_batches(batches)


def function_answers(spark: SparkSession, uri: str, questions: Sequence[Question]) -> list[object]:
    """Answers of the SQL functions in a session that opens the warehouse for them; what Spark says of a damaged file is
    an error of coldlog's, as it is for jobs."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    try:
        attach_warehouse(spark, uri)
        asked = ", ".join(f"('{topic}', {partition}, {timestamp_ms}L)" for topic, partition, timestamp_ms in questions)
        rows = spark.sql(
            f"SELECT * FROM VALUES {asked} AS q(t, p, ms), LATERAL offset_for_timestamp(q.t, q.p, q.ms) ORDER BY ALL"
        ).collect()
        topic, partition, _ = questions[0]
        return [rows, spark.sql(f"SELECT * FROM max_timestamp('{topic}', {partition})").collect()]
    except ColdlogError:
        raise
    except Exception as error:
        explained = explain_failure(error)
        if explained is None:
            raise
        raise ColdlogError(explained) from error
