"""Test that a damaged offset or time index costs only itself if events prove the log whole, and that no damaged log
passes for a whole one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.model.states import IndexDepth
from damage.damaged_archives import (
    INDEXED,
    LOG,
    SEGMENT_OFFSETS,
    Built,
    Partition,
    build_works,
    flips,
    list_works,
    options,
    quarantined,
    undamaged,
)
from stores.memory_store import MemoryStore

INDEXES = (".index", ".timeindex")
DEPTHS = list(IndexDepth)


def announced(work: SegmentWork) -> SegmentWork:
    """The last offset is the one before the next segment, as brokers announce it."""
    return replace(work, announced_end_offset=work.segment.start_offset + SEGMENT_OFFSETS - 1)


def announced_with_size(work: SegmentWork) -> SegmentWork:
    return replace(announced(work), announced_size_bytes=len(INDEXED.content(LOG)))


def build_announced(
    damaged: Partition, depth: IndexDepth, announce: Callable[[SegmentWork], SegmentWork] = announced_with_size
) -> Built:
    """The segment in the middle, of which events are known."""
    layout = LocalTieredStorageLayout(store=MemoryStore(damaged.objects))
    works = list_works(layout)
    (built,) = build_works(layout, [announce(works[1])], options(depth))
    return built


def damages(content: bytes) -> Iterator[bytes]:
    yield from (changed for _, changed in flips(content, (0x01, 0x80)))
    yield from (content[:length] for length in range(len(content)))
    yield content + content[:8]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("suffix", INDEXES)
def test_every_damage_of_an_index_costs_only_the_index(suffix: str, depth: IndexDepth) -> None:
    whole, found = undamaged(depth, is_indexed=True)[1], 0
    for content in damages(INDEXED.content(suffix)):
        built = build_announced(INDEXED.with_content(suffix, content), depth)
        assert quarantined(built, suffix) is None
        assert built.encoded == whole.encoded
        differing = {key: value for key, value in built.outcome.items() if value != whole.outcome[key]}
        if differing:
            ((column, texts),) = differing.items()
            assert column == "damaged_files"
            assert isinstance(texts, list)
            assert [f"{suffix}" in text for text in texts] == [True]
            found += 1
    assert found > len(INDEXED.content(suffix))


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("suffix", INDEXES)
def test_a_deleted_index_costs_only_itself_if_the_log_is_whole(suffix: str, depth: IndexDepth) -> None:
    name = INDEXED.name_of(suffix)
    without = replace(INDEXED, objects={key: content for key, content in INDEXED.objects.items() if key != name})
    built = build_announced(without, depth)
    whole = undamaged(IndexDepth.BATCH if depth is IndexDepth.SIDECAR else depth, is_indexed=True)[1]
    assert built.encoded == whole.encoded
    told = built.outcome["damaged_files"]
    assert isinstance(told, list)
    assert told == [f"segment was listed without this file in {name}"]
    cut = without.with_content(LOG, INDEXED.content(LOG)[: INDEXED.borders[-2]])
    assert quarantined(build_announced(cut, depth), "") is not None


@pytest.mark.parametrize("announce", [announced, announced_with_size])
def test_no_damaged_log_passes_for_a_whole_one_beside_a_damaged_index(
    announce: Callable[[SegmentWork], SegmentWork],
) -> None:
    content = INDEXED.content(LOG)
    logs = [content[:border] for border in INDEXED.borders[:-1]]
    base_offsets = [range(border, border + 8) for border in INDEXED.borders[:-1]]
    logs += [
        content[:at] + bytes([content[at] ^ pattern]) + content[at + 1 :]
        for field in base_offsets
        for at in field
        for pattern in (0x01, 0x02, 0x04, 0x80)
    ]
    for log in logs:
        for suffix in INDEXES:
            damaged = INDEXED.with_content(LOG, log).with_content(suffix, b"\0" * 5)
            assert quarantined(build_announced(damaged, IndexDepth.BATCH, announce), "") is not None


def test_log_in_which_offsets_are_missing_is_not_proven_whole() -> None:
    first, second, *rest = INDEXED.segments[1].batches
    missing = replace(INDEXED.segments[1], batches=(first, *rest))
    assert second.base_offset == first.base_offset + 2
    partition = Partition.of(INDEXED.segments[0], missing, INDEXED.segments[2])
    assert quarantined(build_announced(partition, IndexDepth.BATCH, announced), "") is None
    damaged = partition.with_content(".timeindex", b"")
    assert quarantined(build_announced(damaged, IndexDepth.BATCH, announced), ".timeindex") is not None
