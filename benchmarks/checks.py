"""checks: what do the checks of damage cost, if nothing is damaged?

The same work with the checks and without them, in turns, in one process: without them, the functions that check and
the checksums of Parquet's pages are replaced. Processor time is compared, because other programs disturb it least; the
waiting of synchronized writes is not in it. The ratio is the median of those of the turns.
"""

from __future__ import annotations

import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
from benchmarks.shared.generated_logs import CACHE, get_archive
from benchmarks.shared.measuring import Figure
from benchmarks.shared.sizes import Sizes
from benchmarks.start import indexed_sample

from coldlog.archive.open_archive import open_archive
from coldlog.archive.stores.s3_client import S3Options
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.index_files import IndexPlace, write_index_files
from coldlog.indexing.builds.segment_build import BuildOptions, build_segments
from coldlog.model.states import IndexDepth
from coldlog.reader import OffsetReader
from coldlog.runtime.settings import IndexSettings
from coldlog.tables.definitions.catalog import INDEX_TABLES
from worlds.golden_warehouse import golden_queries

_MOST = 1.05
_REQUESTS, _OPENINGS = 10_000, 10
_SETTINGS = IndexSettings()
_LIMITS = DecodeLimits(
    max_batch_bytes=_SETTINGS.max_batch_bytes, max_decompressed_bytes=_SETTINGS.max_decompressed_bytes
)
_PARQUET_FILE, _PARQUET_WRITER = pq.ParquetFile, pq.ParquetWriter
_SOURCE = "coldlog.tables.delta"


def _unchecked(opened: Callable[..., Any], option: str, *given: object, **named: object) -> object:
    """A reader or writer of Parquet without checksums of pages."""
    return opened(*given, **(named | {option: False}))


_READING: dict[str, Callable[..., Any]] = {
    f"{_SOURCE}.table_files.check_log": lambda *_: None,
    f"{_SOURCE}.table_storage.find_checksums": lambda _: None,
    "coldlog.lookups.served_index.hold_to_manifest": lambda _, listed, *__, **___: list(listed),
    "pyarrow.parquet.ParquetFile": partial(_unchecked, _PARQUET_FILE, "page_checksum_verification"),
}
_BUILDING: dict[str, Callable[..., Any]] = {
    "coldlog.indexing.builds.segment_build.AbortedTransactions": lambda: None,
    "coldlog.indexing.builds.segment_build.require_known_starts": lambda *_: None,
    f"{_SOURCE}.data_files.write_checksums": lambda _: None,
    "pyarrow.parquet.ParquetWriter": partial(_unchecked, _PARQUET_WRITER, "write_page_checksum"),
}


@contextmanager
def without(checks: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """What is replaced does nothing meanwhile."""
    with ExitStack() as patches:
        for name, nothing in checks.items():
            patches.enter_context(patch(name, nothing))
        yield


def measure_checks(sizes: Sizes) -> Iterator[Figure]:
    """Builds in this process, then lookups in the sample's tables."""
    turns = 2 * sizes.turns
    for depth in (IndexDepth.BATCH, IndexDepth.RECORD):
        archive = get_archive(sizes.mix)
        build = partial(_build, archive.directory, depth)
        yield _compared(f"tasks of a build, {depth.value} depth", build, _BUILDING, turns)
    uri, asked = str(indexed_sample()), _questions()
    yield _compared(f"open, {_REQUESTS:,} questions", partial(_ask, uri, asked), _READING, turns)
    opened = partial(_ask, uri, asked[:1], times=_OPENINGS)
    yield _compared(f"open and one question, {_OPENINGS} times", opened, _READING, 2 * turns)
    with OffsetReader(uri) as warm:
        warm.list_offsets(asked)
        yield _compared(f"{_REQUESTS:,} questions, warm", partial(warm.list_offsets, asked), _READING, turns)


def _compared(what: str, work: Callable[[], object], checks: dict[str, Callable[..., Any]], turns: int) -> Figure:
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * (turns + 1)):
        # A B B A: whichever is first of two runs has no advantage.
        is_checked = turn % 4 in (0, 3)
        with without({} if is_checked else checks):
            started = time.process_time()
            work()
            if turn > 1:
                seconds[is_checked].append(time.process_time() - started)
    ratio = statistics.median(a / b for a, b in zip(seconds[True], seconds[False], strict=True))
    return _figure(what, statistics.median(seconds[True]), statistics.median(seconds[False]), ratio)


def _figure(what: str, checked_s: float, unchecked_s: float, ratio: float) -> Figure:
    return Figure(
        benchmark="checks",
        what=what,
        on="nothing is damaged",
        value=1000 * checked_s,
        unit="ms",
        against=f"without checks, {1000 * unchecked_s:,.1f} ms",
        ratio=ratio,
        target=f"<= {_MOST}",
        is_met=ratio <= _MOST,
    )


def _build(archive: Path, depth: IndexDepth) -> None:
    """What tasks do: read every segment, and write the files of the index tables."""
    folder = CACHE / "checked-build"
    shutil.rmtree(folder, ignore_errors=True)
    locations = {table.name: str(folder / table.name) for table in INDEX_TABLES}
    for location in locations.values():
        Path(location).mkdir(parents=True)
    layout = open_archive(str(archive), "local_tiered_storage")
    directories = layout.list_partition_directories().directories
    work = [
        SegmentWork(segment=each, log_modified_ms=0, count_from_offset=each.start_offset, replaces_build_numbers=())
        for directory in directories
        for each in layout.list_segments(directory).segments
    ]
    options = BuildOptions(depth=depth, limits=_LIMITS, window_bytes=_SETTINGS.window_bytes)
    place = IndexPlace(locations=locations, s3=S3Options(), build_number=1)
    for _ in write_index_files(build_segments(layout, work, options), place):
        pass


def _questions() -> list[tuple[str, int, int]]:
    """Those of the sample's broker, by chance and again and again."""
    chosen = random.Random(29).choices(golden_queries(), k=_REQUESTS)
    return [(str(each["topic"]), int(str(each["partition"])), int(str(each["ts"]))) for each in chosen]


def _ask(uri: str, asked: Sequence[tuple[str, int, int]], *, times: int = 1) -> None:
    for _ in range(times):
        with OffsetReader(uri) as reader:
            reader.list_offsets(asked)
