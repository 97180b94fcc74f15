"""Test which earlier segments of a partition a build lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.archive.layouts.aiven_layout import AivenLayout
from coldlog.archive.layouts.layout import ArchiveLayout, PartitionDirectory
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.archive.layouts.paced_layout import PacedLayout
from coldlog.archive.stores.object_store import Level
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.builds.preceding_segments import FARTHEST, EarlierSegments
from coldlog.tiering.read_pace import ReadPace
from stores.memory_store import MemoryStore

TOPIC_ID = "A" * 22
LAYOUTS: dict[str, tuple[str, Callable[[MemoryStore], ArchiveLayout]]] = {
    "local_tiered_storage": (f"orders-0-{TOPIC_ID}", lambda store: LocalTieredStorageLayout(store=store)),
    "aiven": (f"orders-{TOPIC_ID}/0", lambda store: AivenLayout(store=store)),
}


class CountingStore(MemoryStore):
    """A store that counts what it lists."""

    listings = 0
    objects_listed = 0

    def list_level(self, prefix: str, beginnings: Sequence[str] | None = None) -> Level:  # type: ignore[override]
        """As `MemoryStore`."""
        directories, objects = super().list_level(prefix, beginnings)
        self.listings += 1 if beginnings is None else len(beginnings)
        self.objects_listed += len(list(objects))
        return directories, objects


def archive_of(layout: str, start_offsets: Sequence[int]) -> tuple[CountingStore, ArchiveLayout, PartitionDirectory]:
    """One partition with segments at these offsets; two at the same one have different ids."""
    folder, open_layout = LAYOUTS[layout]
    names = [f"{folder}/{start:020d}-{number:021d}A" for number, start in enumerate(start_offsets)]
    suffixes = (".log", ".index", ".snapshot") if layout == "local_tiered_storage" else (".log", ".rsm-manifest")
    store = CountingStore({name + suffix: b"" for name in names for suffix in suffixes})
    opened = open_layout(store)
    (directory,) = opened.list_partition_directories().directories
    return store, opened, directory


def earlier_of(layout: ArchiveLayout) -> EarlierSegments:
    return EarlierSegments(
        layout=layout,
        limits=DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20),
        window_bytes=1 << 20,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 99, 10_000, 999_999, 10**9, 10**15]), min_size=1, max_size=40),
    first=st.sampled_from([0, 9_999, 10**8 - 1, 10**17]),
)
def test_segments_before_one_are_the_nearest_of_the_whole_listing(layout: str, sizes: list[int], first: int) -> None:
    starts = [first + sum(sizes[:number]) for number in range(len(sizes))]
    _, opened, directory = archive_of(layout, starts)
    listed = opened.list_segments(directory).segments
    for segment in listed:
        expected = [each for each in listed if each.start_offset < segment.start_offset][-FARTHEST - 1 :]
        assert earlier_of(opened).before(segment) == expected
    earlier = earlier_of(opened)  # That lists the directory whole in the end.
    for segment in listed:
        expected = [each for each in listed if each.start_offset < segment.start_offset][-FARTHEST - 1 :]
        assert earlier.before(segment) == expected


def test_the_greatest_offsets_are_found() -> None:
    starts = [0, 10**18, 9 * 10**18, (1 << 63) - 1]
    _, opened, directory = archive_of("local_tiered_storage", starts)
    listed = opened.list_segments(directory).segments
    assert [earlier_of(opened).before(each) for each in listed] == [list(listed[:at]) for at in range(4)]


def test_of_a_small_partition_names_are_listed_once() -> None:
    store, opened, directory = archive_of("local_tiered_storage", [0, 100, 200])
    listed = opened.list_segments(directory).segments
    store.listings = 0
    assert earlier_of(opened).before(listed[2]) == [listed[0], listed[1]]
    assert store.listings == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_a_large_partition_only_names_near_the_segment_are_listed(layout: str) -> None:
    store, opened, directory = archive_of(layout, range(10**9, 10**9 + 3_000 * 20_000, 20_000))
    segments = opened.list_segments(directory).segments
    paced = PacedLayout(layout=opened, pace=ReadPace(bytes_per_second=1))
    earlier = earlier_of(paced)
    store.listings = store.objects_listed = 0
    assert earlier.before(segments[-1]) == list(segments[-FARTHEST - 2 : -1])
    assert (store.listings <= 4, store.objects_listed < 1_000) == (True, True)
    assert earlier.before(segments[-2]) == list(segments[-FARTHEST - 3 : -2])
    assert store.listings <= 4, "they are known"
    for number in range(0, 3_000, 100):
        earlier.before(segments[number])
    assert store.listings <= 4 * 4 + 1, "after some by name, the directory is listed once"
