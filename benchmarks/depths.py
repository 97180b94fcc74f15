"""depths: what does the index of a segment cost at each depth?

The build of every segment in this process, without Spark, over one archive: how many bytes it reads, how much of a
processor it takes, and how long it takes on a store that gives 200 MB/s. Rows are made and thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.shared.generated_logs import GeneratedArchive, get_archive
from benchmarks.shared.measuring import MEGABYTE, Figure
from benchmarks.shared.sizes import Sizes

from builders.archive_writer import ARCHIVE_FOLDER
from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.archive.stores.local_store import LocalStore
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.segment_build import BuildOptions, Outcome, build_segments
from coldlog.model.states import IndexDepth
from coldlog.runtime.settings import IndexSettings

_STORE_MB_S = 200
_MOST_READ, _MOST_CPU, _LEAST_FASTER = 0.01, 0.1, 20
_SETTINGS = IndexSettings()


@dataclass(slots=True, kw_only=True)
class _Meter:
    """What was read; `is_slow`: a read takes as long as at 200 MB/s."""

    read_bytes: int = 0
    is_slow: bool = False
    owed_s: float = 0.0

    def count(self, size_bytes: int) -> None:
        self.read_bytes += size_bytes
        if self.is_slow:
            self.owed_s += size_bytes / (_STORE_MB_S * MEGABYTE)
            if self.owed_s > 0.005:  # shorter sleeps are not exact
                began = time.perf_counter()
                time.sleep(self.owed_s)
                self.owed_s -= time.perf_counter() - began


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeteredStore(LocalStore):
    """A LocalStore whose reads are counted."""

    meter: _Meter = field(compare=False)

    def read_range(self, name: str, position: int, length: int, until: int | None = None) -> memoryview:
        content = LocalStore.read_range(self, name, position, length, until)
        self.meter.count(len(content))
        return content


def measure_depths(sizes: Sizes) -> Iterator[Figure]:
    """Bytes, CPU and time of a build at sidecar depth, beside batch depth."""
    archive = get_archive(sizes.mix)
    work = _announced_work(archive)
    read: dict[str, list[int]] = {}
    seconds: dict[tuple[str, str], list[float]] = {}
    for turn in range(sizes.turns + 1):
        for depth in (IndexDepth.BATCH, IndexDepth.SIDECAR):
            for store in ("fast", "slow"):
                meter = _Meter(is_slow=store == "slow")
                layout, began, cpu = _layout(archive, meter), time.perf_counter(), time.process_time()
                _build(layout, work, depth)
                if turn:
                    elapsed = time.process_time() - cpu if store == "fast" else time.perf_counter() - began
                    seconds.setdefault((depth.value, store), []).append(elapsed)
                    read[depth.value] = [meter.read_bytes]
    median = {key: sorted(each)[len(each) // 2] for key, each in seconds.items()}
    share = read["sidecar"][0] / archive.log_bytes
    yield _figure("read at sidecar depth", read["sidecar"][0] / MEGABYTE, "MB", "bytes of the logs", share, _MOST_READ)
    for store, what, most in (
        ("fast", "CPU at sidecar depth", _MOST_CPU),
        ("slow", "build at sidecar depth, 200 MB/s", 1 / _LEAST_FASTER),
    ):
        deep, shallow = median["batch", store], median["sidecar", store]
        yield _figure(what, shallow * 1000, "ms", f"batch depth: {deep * 1000:,.0f} ms", shallow / deep, most)


def _figure(what: str, value: float, unit: str, against: str, ratio: float, most: float) -> Figure:
    return Figure(
        benchmark="depths", what=what, on="all codecs", value=value, unit=unit, against=against, ratio=ratio,
        target=f"<= {most:g}", is_met=ratio <= most,
    )  # fmt: skip


def _layout(archive: GeneratedArchive, meter: _Meter) -> ArchiveLayout:
    root = str(archive.directory / ARCHIVE_FOLDER)
    return LocalTieredStorageLayout(store=_MeteredStore(root=root, uri=root, meter=meter))


def _announced_work(archive: GeneratedArchive) -> list[SegmentWork]:
    """Every segment, with what its event would announce; a build at batch depth finds that."""
    layout = _layout(archive, _Meter())
    listed = [
        each
        for directory in layout.list_partition_directories().directories
        for each in layout.list_segments(directory).segments
    ]
    plain = [
        SegmentWork(segment=each, log_modified_ms=0, count_from_offset=each.start_offset, replaces_build_numbers=())
        for each in listed
    ]
    return [
        SegmentWork(
            segment=each,
            log_modified_ms=0,
            count_from_offset=each.start_offset,
            replaces_build_numbers=(),
            announced_size_bytes=layout.log_size_bytes(each),
            announced_end_offset=row["end_offset"],  # type: ignore[arg-type]  # columns of `OUTCOME_SCHEMA`
            announced_max_timestamp_ms=row["max_timestamp_ms"],  # type: ignore[arg-type]
            announced_leader_epochs=tuple(
                (epoch["leader_epoch"], epoch["start_offset"])
                for epoch in row["segment_leader_epochs"]  # type: ignore[attr-defined]
            ),
        )
        for each, row in zip(listed, _build(layout, plain, IndexDepth.BATCH), strict=True)
    ]


def _build(layout: ArchiveLayout, work: list[SegmentWork], depth: IndexDepth) -> list[dict[str, object]]:
    options = BuildOptions(
        depth=depth,
        limits=DecodeLimits(
            max_batch_bytes=_SETTINGS.max_batch_bytes, max_decompressed_bytes=_SETTINGS.max_decompressed_bytes
        ),
        window_bytes=_SETTINGS.window_bytes,
    )
    outcomes = [part.row for part in build_segments(layout, work, options) if isinstance(part, Outcome)]
    wrong = [row for row in outcomes if row["index_depth"] != depth.value]
    assert not wrong, wrong[0]
    return outcomes
