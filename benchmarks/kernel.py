"""kernel: how near does one core come to the bare limits, at both depths?

The indexer alone, over memory-mapped logs, nothing written; beside the checksum of the same files, and beside their
decompression. For uncompressed logs there is nothing to decompress: there the checksum is the limit of both depths.
A map needs no memory for a window, so that these windows are large; how tasks read, into memory of the size of
`index.window_bytes`, is a line of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.shared.bare_limits import checksum_files, decompress_files, find_payloads, mapped
from benchmarks.shared.generated_logs import MIB, get_archive
from benchmarks.shared.measuring import MEGABYTE, Figure, pinned_to_one_core, seconds_in_turns
from benchmarks.shared.sizes import Sizes

from builders.payload_codecs import Codec
from coldlog.archive.stores.local_store import LocalStore
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.index.segment_index import SegmentIndexer
from coldlog.model.states import IndexDepth
from coldlog.runtime.settings import IndexSettings

_GOAL = 0.8
_MAPPED_WINDOW_BYTES = 64 * MIB
_SETTINGS = IndexSettings()
_LIMITS = DecodeLimits(
    max_batch_bytes=_SETTINGS.max_batch_bytes, max_decompressed_bytes=_SETTINGS.max_decompressed_bytes
)


def measure_kernel(sizes: Sizes) -> Iterator[Figure]:
    """Speeds in MB of log a second, codec by codec."""
    mix = get_archive(sizes.mix)
    with pinned_to_one_core():
        for codec in sizes.mix.codecs:
            yield from _measure_codec(codec, mix.list_logs(codec), sizes.turns)


def _measure_codec(codec: Codec, logs: Sequence[Path], turns: int) -> Iterator[Figure]:
    calls: dict[str, Callable[[], object]] = {
        "checksum": lambda: checksum_files(logs),
        "batch": lambda: index_logs(logs, IndexDepth.BATCH),
        "read": lambda: index_logs(logs, IndexDepth.BATCH, windows_as_read),
        "record": lambda: index_logs(logs, IndexDepth.RECORD),
    }
    if codec is not Codec.NONE:
        payloads = {log: find_payloads(log) for log in logs}
        output = memoryview(bytearray(4 * MIB))
        calls["decompression"] = lambda: decompress_files(payloads, codec, output)
    megabytes = sum(log.stat().st_size for log in logs) / MEGABYTE
    speeds = {name: megabytes / seconds for name, seconds in seconds_in_turns(calls, turns).items()}
    yield _figure(codec, "batch", speeds, "checksum", "mmap + crc32c", goal=_GOAL)
    yield _figure(codec, "read", speeds, "checksum", "mmap + crc32c", goal=None)
    if codec is Codec.NONE:
        yield _figure(codec, "record", speeds, "checksum", "mmap + crc32c", goal=None)
    else:
        is_goal_set = codec is Codec.ZSTD
        yield _figure(codec, "record", speeds, "decompression", "decompression", goal=_GOAL if is_goal_set else None)


ReadWindow = Callable[[int, int], memoryview]
"""From a position to a position of a log."""


@contextmanager
def windows_mapped(log: Path) -> Iterator[tuple[int, ReadWindow]]:
    """Parts of a memory map, and the size of a window."""
    with mapped(log) as view:
        yield _MAPPED_WINDOW_BYTES, lambda begin, end: view[begin:end]


@contextmanager
def windows_as_read(log: Path) -> Iterator[tuple[int, ReadWindow]]:
    """By the store, as tasks do, and the size of a window."""
    store = LocalStore(root=str(log.parent), uri=str(log.parent))
    yield _SETTINGS.window_bytes, lambda begin, end: store.read_range(log.name, begin, end - begin)


def index_logs(
    logs: Sequence[Path],
    depth: IndexDepth,
    windows_of: Callable[[Path], AbstractContextManager[tuple[int, ReadWindow]]] = windows_mapped,
) -> None:
    """Indexes every log, one after another; the chunks are thrown away."""
    for log in logs:
        start_offset, size_bytes = int(log.name[:20]), log.stat().st_size
        indexer = SegmentIndexer(
            start_offset=start_offset,
            depth=depth,
            counted_from_offset=start_offset,
            sections=SectionReader(limits=_LIMITS),
        )
        with windows_of(log) as (window_bytes, read_window):
            position = 0
            while position < size_bytes:
                end = min(position + window_bytes, size_bytes)
                with read_window(position, end) as window:
                    consumed_bytes = indexer.add_window(window, position, is_last=end == size_bytes).consumed_bytes
                del window
                position += consumed_bytes
        indexer.finish()


def _figure(
    codec: Codec, depth: str, speeds: dict[str, float], peer: str, peer_name: str, *, goal: float | None
) -> Figure:
    ratio = speeds[depth] / speeds[peer]
    return Figure(
        benchmark="kernel",
        what="batch depth, one core, as tasks read" if depth == "read" else f"{depth} depth, one core",
        on=codec.value,
        value=speeds[depth],
        unit="MB/s",
        against=f"{peer_name}, {speeds[peer]:,.0f} MB/s",
        ratio=ratio,
        target="" if goal is None else f">= {goal}",
        is_met=None if goal is None else ratio >= goal,
    )
