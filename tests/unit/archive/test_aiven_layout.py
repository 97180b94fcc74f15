"""Test archives of the Aiven plugin: every byte is read from its chunks, and damage is reported."""

from __future__ import annotations

import hashlib
import pickle
import random
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.aiven_writer import AivenSegment, Keys, make_keys, write_aiven_segment
from coldlog.archive.layouts.aiven_keys import ENVIRONMENT_VARIABLE, find_private_key, list_key_ids
from coldlog.archive.layouts.aiven_layout import AivenLayout, read_key_prefixes
from coldlog.archive.layouts.layout import BundleKind, LayoutOptions, ListedSegment, SegmentFileKind, name_of
from coldlog.archive.open_archive import open_archive
from coldlog.errors import ArchiveError, Reason, UsageError
from drawn_examples import sampled
from stores.memory_store import MemoryStore
from worlds.aiven_sample import (
    ORIGINAL_NAMES,
    VARIANTS,
    archive_of,
    finished_segments,
    key_files,
    keys_setting,
    true_segments,
)

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
KEYS = make_keys()
LOG = random.Random(3).randbytes(1000)


def list_all(layout: AivenLayout) -> list[ListedSegment]:
    directories = layout.list_partition_directories().directories
    return [segment for directory in directories for segment in layout.list_segments(directory).segments]


def list_one(objects: Mapping[str, bytes], *prefixes: str) -> tuple[AivenLayout, ListedSegment]:
    layout = AivenLayout(store=MemoryStore(objects), key_prefixes=prefixes or ("",))
    (segment,) = list_all(layout)
    return layout, segment


def reads_of(layout: AivenLayout) -> list[tuple[str, int, int]]:
    """The reads of the store since the last call: suffix, position, length."""
    assert isinstance(layout.store, MemoryStore)
    reads = [(read.name.rpartition(".")[2], read.position, read.length) for read in layout.store.reads]
    layout.store.reads.clear()
    return reads


def sample_objects(variant: str) -> dict[str, bytes]:
    root = archive_of(variant)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("*/*/*")}


@pytest.fixture
def own_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Keys:
    path = tmp_path / "key1.pem"
    path.write_bytes(KEYS.pem)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, f"key1={path}")
    return KEYS


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, keys_setting(name))
    return name


def test_every_byte_of_every_original_file_is_read(variant: str) -> None:
    layout = open_archive(str(archive_of(variant)), "aiven")
    assert isinstance(layout, AivenLayout)
    listing = layout.list_partition_directories()
    assert listing.unrecognized == ()
    finished = finished_segments(variant)
    seen = set()
    for directory in listing.directories:
        listed = layout.list_segments(directory)
        assert listed.unrecognized == ()
        for segment in listed.segments:
            if segment.segment_id not in finished:
                continue
            true = finished[segment.segment_id]
            seen.add(segment.segment_id)
            place = segment.topic, segment.topic_id, segment.partition, segment.start_offset, segment.missing_kinds
            assert place == (true["topic"], true["topic_id"], true["partition"], true["start_offset"], ())
            assert {each.name: each.size_bytes for each in segment.objects} == true["objects"]
            assert layout.log_size_bytes(segment) == true["size"]
            for kind, name in ORIGINAL_NAMES.items():
                original = true["original"][name]
                assert layout.has_file(segment, kind) == (original is not None)
                if original is None:
                    continue
                is_log = kind is SegmentFileKind.LOG
                content = (
                    layout.read_log_range(segment, 0, 1 << 31) if is_log else layout.read_small_file(segment, kind)
                )
                assert hashlib.sha256(content).hexdigest() == original["sha256"], (segment, name)
    assert seen == set(finished)


def test_ranges_are_slices_of_the_log(variant: str) -> None:
    chance = random.Random(variant)
    layout = AivenLayout(store=MemoryStore(sample_objects(variant)))
    finished = finished_segments(variant)
    segments = [segment for segment in list_all(layout) if segment.segment_id in finished]
    logs = {segment.segment_id: bytes(layout.read_log_range(segment, 0, 1 << 31)) for segment in segments}
    for _ in range(300):
        segment = chance.choice(segments)
        log = logs[segment.segment_id]
        start = chance.randrange(len(log) + 10)
        length = chance.choice((0, 1, 61, 20_000, 65_536, len(log)))
        found = layout.read_log_range(segment, start, length)
        assert found == log[start : start + length]
        assert found.readonly


def test_threads_that_share_a_layout_read_correct_bytes(variant: str) -> None:
    layout = AivenLayout(store=MemoryStore(sample_objects(variant)))
    finished = finished_segments(variant)
    segments = [segment for segment in list_all(layout) if segment.segment_id in finished]
    logs = {segment.segment_id: bytes(layout.read_log_range(segment, 0, 1 << 31)) for segment in segments}

    def read_many(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(200):
            segment = chance.choice(segments)
            log = logs[segment.segment_id]
            start = chance.randrange(len(log))
            assert layout.read_log_range(segment, start, 20_000) == log[start : start + 20_000]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(read_many, range(8)))
    finally:
        sys.setswitchinterval(before)


def test_sequential_read_of_a_log_fetches_each_chunk_once(variant: str) -> None:
    layout = AivenLayout(store=MemoryStore(sample_objects(variant)))
    for segment in list_all(layout):
        if segment.segment_id not in finished_segments(variant):
            continue
        size = layout.log_size_bytes(segment)
        assert [name for name, _, _ in reads_of(layout)] == ["rsm-manifest"]
        window = 30_001
        for position in range(0, size, window):
            layout.read_log_range(segment, position, window)
        fetched = reads_of(layout)
        ends = 0
        for name, position, length in fetched:
            assert (name, position) == ("log", ends), "chunks follow each other, none is fetched twice"
            ends += length
        log = segment.find_object(SegmentFileKind.LOG)
        assert log is not None
        is_plain = layout._open(segment).manifest.is_transformed is False
        assert ends == log.size_bytes or is_plain


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("keys", [None, KEYS], ids=["clear", "encrypted"])
def test_range_is_read_by_one_read_of_its_chunks(own_key: Keys, is_compressed: bool, keys: Keys | None) -> None:
    objects = write_aiven_segment(AivenSegment(log=LOG), chunk_bytes=100, is_compressed=is_compressed, keys=keys)
    layout, segment = list_one(objects)
    opened = layout._open(segment)
    reads_of(layout)
    for start, length, chunks in (
        (0, 1, (0, 1)),
        (250, 100, (2, 4)),
        (399, 2, (3, 5)),
        (300, 100, (3, 4)),
        (950, 99, (9, 10)),
    ):
        opened.last_chunk = None
        assert layout.read_log_range(segment, start, length) == LOG[start : start + length]
        index = opened.manifest.chunk_index
        stored = index.stored_start(chunks[0]), index.stored_start(chunks[1])
        is_plain = keys is None and not is_compressed
        expected = (start, min(length, 1000 - start)) if is_plain else (stored[0], stored[1] - stored[0])
        assert reads_of(layout) == [("log", *expected)]
    assert not layout.read_log_range(segment, 1000, 10)
    assert not layout.read_log_range(segment, 5, 0)
    assert reads_of(layout) == []
    with pytest.raises(UsageError):
        layout.read_log_range(segment, -1, 5)


def test_last_chunk_is_kept_for_one_segment_only(own_key: Keys) -> None:
    one = AivenSegment(log=LOG)
    other = AivenSegment(log=LOG[::-1], start_offset=7, segment_id="CCCCCCCCCCCCCCCCCCCCCA")
    objects: dict[str, bytes] = {}
    for each in (one, other):
        objects |= write_aiven_segment(each, chunk_bytes=100, is_compressed=True, keys=KEYS)
    layout = AivenLayout(store=MemoryStore(objects))
    first, second = list_all(layout)
    assert layout.read_log_range(first, 0, 150) == LOG[:150]
    reads_of(layout)
    assert layout.read_log_range(first, 150, 20) == LOG[150:170]
    assert reads_of(layout) == []
    assert layout.read_log_range(second, 150, 20) == LOG[::-1][150:170]
    reads_of(layout)
    assert layout._open(first).last_chunk is None
    assert layout.read_log_range(first, 150, 20) == LOG[150:170]
    assert [name for name, _, _ in reads_of(layout)] == ["log"]


def test_manifests_of_a_bounded_number_of_segments_are_kept() -> None:
    objects: dict[str, bytes] = {}
    for offset in range(40):
        objects |= write_aiven_segment(
            AivenSegment(log=b"x", start_offset=offset, segment_id=f"{'B' * 19}{offset:02d}A")
        )
    layout = AivenLayout(store=MemoryStore(objects))
    segments = list_all(layout)
    assert reads_of(layout) == [], "a listing opens nothing"
    for segment in segments:
        layout.log_size_bytes(segment)
        layout.log_size_bytes(segment)
    assert len(reads_of(layout)) == 40
    layout.log_size_bytes(segments[-1])
    layout.log_size_bytes(segments[0])
    assert len(reads_of(layout)) == 1


def test_pickled_layout_has_neither_manifests_nor_keys(own_key: Keys) -> None:
    layout, segment = list_one(write_aiven_segment(AivenSegment(log=LOG), keys=KEYS), "")
    before = len(pickle.dumps(layout))
    assert layout.read_log_range(segment, 0, 10) == LOG[:10]
    assert isinstance(layout.store, MemoryStore)
    layout.store.reads.clear()
    assert len(pickle.dumps(layout)) == before
    copied = pickle.loads(pickle.dumps(layout))
    assert copied == AivenLayout(store=copied.store)
    assert copied.read_log_range(segment, 0, 10) == LOG[:10]


def refused(layout: AivenLayout, segment: ListedSegment) -> ArchiveError:
    with pytest.raises(ArchiveError) as raised:
        layout.read_log_range(segment, 0, 1 << 31)
    return raised.value


def test_missing_key_is_named_in_the_error(no_keys: None) -> None:
    layout, segment = list_one(write_aiven_segment(AivenSegment(log=LOG), keys=KEYS))
    wrong = refused(layout, segment)
    assert (wrong.reason, wrong.expected) == (Reason.DECRYPTION_KEY_MISSING, "key1")
    assert wrong.object_name.endswith(".rsm-manifest")
    with pytest.raises(ArchiveError):
        layout.read_small_file(segment, SegmentFileKind.TIME_INDEX)


def test_wrong_key_and_missing_key_are_different_errors(own_key: Keys) -> None:
    layout, segment = list_one(write_aiven_segment(AivenSegment(log=LOG), keys=make_keys()))
    wrong = refused(layout, segment)
    assert wrong.reason is Reason.DECRYPTION_FAILED
    assert "belongs to another pair" in wrong.message
    layout, segment = list_one(write_aiven_segment(AivenSegment(log=LOG), keys=make_keys("key7")))
    assert refused(layout, segment).expected == "key7"


def test_every_changed_byte_of_an_encrypted_segment_gives_the_right_bytes_or_an_archive_error(own_key: Keys) -> None:
    files = {name: name.encode() for name in ("offset", "timestamp", "producerSnapshot", "leaderEpoch", "transaction")}
    original = AivenSegment(log=LOG[:150], indexes=files)
    objects = write_aiven_segment(original, chunk_bytes=100, is_compressed=True, keys=KEYS)
    true = {"log": LOG[:150]} | files
    reasons = set()
    for name, content in objects.items():
        # Damage of a manifest is an error of every file.
        asked = ("log", "timestamp") if name.endswith("manifest") else tuple(true)
        for at in sampled(range(len(content))):
            changed = content[:at] + bytes([content[at] ^ 0x04]) + content[at + 1 :]
            layout, segment = list_one(objects | {name: changed})
            for own in asked:
                try:
                    assert read_file(layout, segment, own) == true[own], (name, at)
                except ArchiveError as wrong:
                    reasons.add((wrong.reason, wrong.object_name == ""))
    assert reasons >= {
        (Reason.MANIFEST_INVALID, False),
        (Reason.DECRYPTION_FAILED, False),
        (Reason.DECRYPTION_KEY_MISSING, False),
    }
    assert not any(is_nameless for _, is_nameless in reasons)


def read_file(layout: AivenLayout, segment: ListedSegment, name: str) -> bytes:
    kind = next(kind for kind, own in ORIGINAL_NAMES.items() if own == name)
    if kind is SegmentFileKind.LOG:
        return bytes(layout.read_log_range(segment, 0, 1 << 31))
    return bytes(layout.read_small_file(segment, kind))


def test_damaged_chunk_is_reported_with_its_position_and_other_chunks_stay_readable(own_key: Keys) -> None:
    objects = write_aiven_segment(AivenSegment(log=LOG), chunk_bytes=100, keys=KEYS)
    name = next(name for name in objects if name.endswith(".log"))
    content = bytearray(objects[name])
    content[3 * 128 + 50] ^= 1
    layout, segment = list_one(objects | {name: bytes(content)})
    wrong = refused(layout, segment)
    assert (wrong.reason, wrong.object_name, wrong.position) == (Reason.DECRYPTION_FAILED, name, 3 * 128)
    assert layout.read_log_range(segment, 0, 300) == LOG[:300]
    assert layout.read_log_range(segment, 400, 600) == LOG[400:]


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_cut_object_is_reported_before_any_byte_is_returned(no_keys: None, suffix: str) -> None:
    objects = write_aiven_segment(AivenSegment(log=LOG))
    name = next(name for name in objects if name.endswith(suffix))
    for kept in (0, len(objects[name]) // 2, len(objects[name]) - 1):
        layout, segment = list_one(objects | {name: objects[name][:kept]})
        wrong = refused(layout, segment)
        expected = {
            "log": Reason.LOG_SIZE_DIFFERS,
            "indexes": Reason.INDEXES_SIZE_DIFFERS,
            "rsm-manifest": Reason.MANIFEST_INVALID,
        }
        assert (wrong.reason, wrong.object_name) == (expected[suffix], name)


def read_all(layout: AivenLayout, segment: ListedSegment) -> None:
    layout.read_log_range(segment, 0, 2000)
    layout.read_small_file(segment, SegmentFileKind.TXN_INDEX)


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_object_removed_or_cut_after_the_listing_is_reported(own_key: Keys, suffix: str) -> None:
    objects = write_aiven_segment(AivenSegment(log=LOG), keys=KEYS)
    layout, segment = list_one(objects)
    name = next(name for name in objects if name.endswith(suffix))
    assert isinstance(layout.store, MemoryStore)
    for content in (None, objects[name][:-5]):
        del layout.store.objects[name]
        if content is not None:
            layout.store.objects[name] = content
        layout._opened._opened.clear()
        with pytest.raises(ArchiveError) as raised:
            read_all(layout, segment)
        assert raised.value.object_name == name
        layout.store.objects[name] = objects[name]


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [("log", SegmentFileKind.LOG), ("indexes", BundleKind.INDEXES), ("rsm-manifest", BundleKind.MANIFEST)],
)
def test_copy_with_a_missing_object_is_incomplete(suffix: str, kind: SegmentFileKind | BundleKind) -> None:
    objects = write_aiven_segment(AivenSegment(log=LOG))
    layout, segment = list_one({name: each for name, each in objects.items() if not name.endswith(suffix)})
    assert segment.missing_kinds == (kind,)
    assert segment.listed_log_size_bytes is None
    wrong = refused(layout, segment)
    assert wrong.reason is Reason.OBJECT_MISSING
    assert wrong.object_name.endswith(f".{suffix}")


def test_manifest_of_another_segment_is_refused() -> None:
    objects = write_aiven_segment(AivenSegment(log=LOG))
    stranger = write_aiven_segment(AivenSegment(log=LOG, start_offset=9))
    (name,) = (name for name in objects if name.endswith("manifest"))
    (other,) = (content for each, content in stranger.items() if each.endswith("manifest"))
    layout, segment = list_one(objects | {name: other})
    wrong = refused(layout, segment)
    assert (wrong.reason, wrong.message) == (Reason.MANIFEST_INVALID, "manifest belongs to another segment")


def test_remains_of_a_crash_in_a_real_archive_are_incomplete_damaged_or_a_second_copy(no_keys: None) -> None:
    layout = AivenLayout(store=MemoryStore(sample_objects("faults")))
    unfinished = {
        segment.segment_id: segment
        for segment in list_all(layout)
        if true_segments("faults")[segment.segment_id]["state"] == "COPY_SEGMENT_STARTED"
    }
    assert {key: each.missing_kinds for key, each in unfinished.items()} == {
        "4GxIC0z6RzCqAok96EEb1g": (),
        "tU4Hf9TSTDmXBpj6pPcKDg": (BundleKind.MANIFEST,),
        "MDWAtAmyR0afIYBSs-Pjpg": (),
    }
    half = refused(layout, unfinished["4GxIC0z6RzCqAok96EEb1g"])
    assert (half.reason, half.position) == (Reason.MANIFEST_INVALID, 352)
    assert refused(layout, unfinished["tU4Hf9TSTDmXBpj6pPcKDg"]).reason is Reason.OBJECT_MISSING
    whole = layout.read_log_range(unfinished["MDWAtAmyR0afIYBSs-Pjpg"], 0, 1 << 31)
    original = true_segments("faults")["MDWAtAmyR0afIYBSs-Pjpg"]["original"]["log"]
    assert original is not None
    assert hashlib.sha256(whole).hexdigest() == original["sha256"]


PREFIXES = ("tier/", "tier/a-", "a-", "deep/er/", "")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_key_prefix_is_prepended_unchanged(prefix: str) -> None:
    objects = write_aiven_segment(AivenSegment(log=LOG), prefix=prefix)
    layout, segment = list_one(objects, prefix)
    assert layout.list_partition_directories().unrecognized == ()
    assert layout.read_log_range(segment, 0, 5) == LOG[:5]
    assert {each.name for each in segment.objects} == set(objects)


def test_names_without_the_key_prefix_are_ignored() -> None:
    objects = write_aiven_segment(AivenSegment(log=LOG), prefix="tier/a-")
    others = {"tier/b-orders-x/0/y": b"", "tier/b": b"", "c": b"", "tier/a-stray": b"", "tier/a-d/0/x": b""}
    layout, _ = list_one(objects | others, "tier/a-")
    listing = layout.list_partition_directories()
    assert {each.name for each in listing.unrecognized} == {"tier/a-stray", "tier/a-d"}


@given(st.sets(st.sampled_from(PREFIXES), min_size=1), st.permutations(PREFIXES))
def test_segments_of_several_key_prefixes_are_each_found_once(used: set[str], asked: list[str]) -> None:
    objects: dict[str, bytes] = {}
    for number, prefix in enumerate(sorted(used)):
        own = AivenSegment(log=LOG, start_offset=number, segment_id=f"{'D' * 20}{number}A")
        objects |= write_aiven_segment(own, prefix=prefix)
    layout = AivenLayout(store=MemoryStore(objects), key_prefixes=tuple(asked))
    listing = layout.list_partition_directories()
    assert [each.name for each in listing.directories] == [f"orders-{TOPIC_ID}/0"]
    assert listing.unrecognized == ()
    segments = list_all(layout)
    assert [segment.start_offset for segment in segments] == list(range(len(used)))
    assert all(layout.read_log_range(segment, 0, 2000) == LOG for segment in segments)


def test_complete_copy_then_the_first_prefix_wins_for_a_segment_below_two_prefixes() -> None:
    old, new = (write_aiven_segment(AivenSegment(log=LOG), prefix=prefix) for prefix in ("old/", "new/"))
    _, segment = list_one(old | new, "new/", "old/")
    assert {each.name for each in segment.objects} == set(new)
    half = {name: each for name, each in new.items() if not name.endswith("manifest")}
    layout, segment = list_one(old | half, "new/", "old/")
    assert {each.name for each in segment.objects} == set(old)
    (directory,) = layout.list_partition_directories().directories
    assert {each.name for each in layout.list_segments(directory).unrecognized} == set(half)


def test_names_that_the_plugin_does_not_write_are_listed_as_unrecognized() -> None:
    objects = write_aiven_segment(AivenSegment(log=LOG))
    topic, stem = f"orders-{TOPIC_ID}", "00000000000000000009-EEEEEEEEEEEEEEEEEEEEEA"
    strays = {
        "stray": "a file beside the topics",
        f"{topic}/stray": "a file beside the partitions",
        f"{topic}/00/{stem}.log": "directory: no partition",
        f"{topic}/2147483648/{stem}.log": "directory: no partition",
        f"{topic}/0/{stem}.index": "no <start offset>-<segment id><suffix>",
        f"{topic}/0/{stem}": "no <start offset>-<segment id><suffix>",
        f"{topic}/0/99999999999999999999-EEEEEEEEEEEEEEEEEEEEEA.log": "no <start offset>-<segment id><suffix>",
        f"{topic}/0/00000000000000000009-EEEEEEEEEEEEEEEEEEEEEB.log": "no <start offset>-<segment id><suffix>",
        f"{topic}/0/deeper/{stem}.log": "directory: a directory below a partition",
        f"orders/0/{stem}.log": "directory: no <topic>-<topic id>",
        f"..-{TOPIC_ID}/0/{stem}.log": "directory: no <topic>-<topic id>",
    }
    layout = AivenLayout(store=MemoryStore(objects | dict.fromkeys(strays, b"")))
    listing = layout.list_partition_directories()
    found = [*listing.unrecognized, *layout.list_segments(listing.directories[0]).unrecognized]
    assert len(listing.directories) == 1
    expected = {
        name if why[:9] != "directory" else name.removesuffix(f"/{stem}.log").removesuffix("/0"): why
        for name, why in strays.items()
    }
    assert {each.name: each.why for each in found} == expected


def test_segment_id_with_a_second_start_offset_is_not_a_second_segment() -> None:
    one, two = (write_aiven_segment(AivenSegment(log=LOG, start_offset=offset)) for offset in (3, 4))
    layout, segment = list_one(one | two)
    assert segment.start_offset == 3
    (directory,) = layout.list_partition_directories().directories
    assert {each.name for each in layout.list_segments(directory).unrecognized} == set(two)


def test_segments_are_listed_by_name_below_each_prefix() -> None:
    one = AivenSegment(log=LOG, start_offset=3)
    other = AivenSegment(log=LOG, start_offset=9, segment_id="E" * 21 + "A")
    old, new = write_aiven_segment(one, prefix="a/"), write_aiven_segment(other, prefix="b/")
    stray = f"{next(iter(new)).rpartition('.')[0]}.tmp"
    layout = AivenLayout(store=MemoryStore(old | new | {stray: b""}), key_prefixes=("a/", "b/"))
    (directory,) = layout.list_partition_directories().directories
    for segment in layout.list_segments(directory).segments:
        listing = layout.list_named(directory, [name_of((segment.start_offset, segment.segment_id))])
        assert listing.segments == (segment,)
        assert [each.name for each in listing.unrecognized] == ([stray] if segment.start_offset == 9 else [])
    assert layout.list_named(directory, [name_of((3, "AAAAAAAAAAAAAAAAAAAAAA"))]).segments == ()


def test_listing_lists_each_directory_once() -> None:
    objects: dict[str, bytes] = {}
    for topic in range(30):
        objects |= write_aiven_segment(AivenSegment(topic=f"t{topic}", log=LOG))
    layout = AivenLayout(store=MemoryStore(objects))
    assert [each.topic for each in layout.list_partition_directories().directories] == sorted(
        f"t{topic}" for topic in range(30)
    )
    assert layout.list_segments(layout.list_partition_directories().directories[0]).segments[0].topic == "t0"
    assert reads_of(layout) == []


def write_tree(root: Path, objects: Mapping[str, bytes]) -> None:
    for name, content in objects.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_archive_with_another_key_prefix_is_refused_but_an_empty_one_is_opened(no_keys: None, tmp_path: Path) -> None:
    assert open_archive(str(tmp_path), "aiven").list_partition_directories().directories == ()
    write_tree(tmp_path, write_aiven_segment(AivenSegment(log=LOG), prefix="tier/a-"))
    with pytest.raises(UsageError, match="archive.key_prefix"):
        open_archive(str(tmp_path), "aiven")
    layout = open_archive(str(tmp_path), "aiven", LayoutOptions(key_prefix="new/,tier/a-"))
    assert layout.name == "aiven"
    assert len(layout.list_partition_directories().directories) == 1
    assert not layout.is_mirror


@pytest.mark.parametrize("prefix", ["/tier", "tier//a", "../", "./a", "a\0"])
def test_impossible_key_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="archive.key_prefix"):
        read_key_prefixes(prefix)


def bad_settings(tmp_path: Path) -> Iterator[tuple[str, str]]:
    public = tmp_path / "public.pem"
    good = next(iter(key_files("encrypted").values()))
    public.write_bytes(good.with_name(good.name.replace("private", "public")).read_bytes())
    yield f"key1={tmp_path}/none.pem", "No such file"
    yield f"key1={public}", "it has a public key"
    yield f"key1={tmp_path}", "Is a directory"
    yield "key1=relative.pem", "entry 1"
    yield f"key1={good},key1={good}", "two files"
    yield f"key1={good},/secret", "entry 2"
    yield f"key1={good},key2=-----BEGIN PRIVATE KEY-----MIIsecret", "entry 2"


def test_unreadable_keys_stop_a_run_before_it_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for value, message in bad_settings(tmp_path):
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, value)
        with pytest.raises(UsageError, match=message) as raised:
            open_archive(str(archive_of("encrypted")), "aiven")
        assert "secret" not in str(raised.value)


def test_replaced_key_file_is_used_immediately(own_key: Keys, tmp_path: Path) -> None:
    assert list_key_ids() == {"key1"}
    objects = write_aiven_segment(AivenSegment(log=LOG), keys=make_keys())
    layout, segment = list_one(objects)
    assert refused(layout, segment).reason is Reason.DECRYPTION_FAILED
    replacement = make_keys()
    (tmp_path / "key1.pem").write_bytes(replacement.pem + b"\n")
    layout, segment = list_one(write_aiven_segment(AivenSegment(log=LOG), keys=replacement))
    assert layout.read_log_range(segment, 0, 10) == LOG[:10]
    assert find_private_key("key2") is None
