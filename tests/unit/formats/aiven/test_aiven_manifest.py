"""Test manifests of the Aiven plugin: real ones are read, any other content is an ArchiveError."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.aiven_writer import AivenSegment, make_keys, write_aiven_segment
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.aiven.manifest import MAX_MANIFEST_BYTES, SegmentManifest, read_aiven_manifest
from drawn_examples import examples
from worlds.aiven_sample import VARIANTS, archive_of, finished_segments

KEYS = make_keys()


def manifest_of(objects: dict[str, bytes]) -> bytes:
    return next(content for name, content in objects.items() if name.endswith(".rsm-manifest"))


def written(*, is_compressed: bool, is_encrypted: bool) -> bytes:
    segment = AivenSegment(log=bytes(range(200)))
    return manifest_of(write_aiven_segment(segment, is_compressed=is_compressed, keys=KEYS if is_encrypted else None))


EXAMPLES = [written(is_compressed=c, is_encrypted=e) for c in (False, True) for e in (False, True)]


def read(content: bytes | str) -> SegmentManifest:
    return read_aiven_manifest(memoryview(content.encode() if isinstance(content, str) else content))


def test_real_manifests_match_the_metadata_topic() -> None:
    for variant in VARIANTS:
        for segment_id, true in finished_segments(variant).items():
            (path,) = archive_of(variant).glob(f"*/*/*-{segment_id}.rsm-manifest")
            manifest = read(path.read_bytes())
            described = manifest.described
            assert described is not None
            described_ids = described.topic, described.topic_id, described.partition, described.segment_id
            assert described_ids == (true["topic"], true["topic_id"], true["partition"], segment_id)
            assert (described.start_offset, described.end_offset) == (true["start_offset"], true["end_offset"])
            assert (described.max_timestamp_ms, described.txn_index_empty) == (true["max_ts"], true["txn_idx_empty"])
            assert manifest.chunk_index.original_bytes == true["size"]
            assert (manifest.indexes.transaction is None) == (true["original"]["transaction"] is None)
            sizes = {name.rpartition(".")[2]: size for name, size in true["objects"].items()}
            assert (manifest.chunk_index.stored_bytes, manifest.indexes.stored_bytes) == (
                sizes["log"],
                sizes["indexes"],
            )
            assert (manifest.encryption is not None) == variant.endswith("encrypted")


def test_cut_manifest_is_reported_with_its_end() -> None:
    (path,) = archive_of("faults").glob("*/*/*-4GxIC0z6RzCqAok96EEb1g.rsm-manifest")
    content = path.read_bytes()
    assert len(content) == 361
    with pytest.raises(ArchiveError) as refused:
        read(content)
    assert refused.value.reason is Reason.MANIFEST_INVALID
    assert 340 <= refused.value.position <= 361


@pytest.mark.parametrize("content", EXAMPLES, ids=["plain", "encrypted", "zstd", "zstd-encrypted"])
def test_manifest_cut_anywhere_is_refused(content: bytes) -> None:
    read(content)
    for end in range(len(content)):
        with pytest.raises(ArchiveError) as refused:
            read(content[:end])
        assert refused.value.reason is Reason.MANIFEST_INVALID


def with_field(path: str, value: object) -> bytes:
    """The encrypted example with one field changed, or without the field if the value is `...`."""
    manifest = json.loads(EXAMPLES[1])
    *above, name = path.split(".")
    place = manifest
    for each in above:
        place = place[each]
    if value is ...:
        del place[name]
    else:
        place[name] = value
    return json.dumps(manifest).encode()


LIES: list[tuple[str, object]] = [
    ("version", "2"),
    ("of another version", 1),
    ("chunkIndex.transformedChunks", ""),
    ("segmentIndexes.offset.length", 1),
    ("encryption.iv", ""),
    ("version", 1),
    ("compression", "false"),
    ("compression", True),
    ("chunkIndex.type", "stretchable"),
    ("chunkIndex.originalChunkSize", 0),
    ("chunkIndex.originalChunkSize", -64),
    ("chunkIndex.originalChunkSize", 65),
    ("chunkIndex.originalFileSize", -1),
    ("chunkIndex.originalFileSize", 1e999),
    ("chunkIndex.originalFileSize", 200.0),
    ("chunkIndex.originalFileSize", True),
    ("chunkIndex.originalFileSize", 10**400),
    ("chunkIndex.originalFileSize", 2**31),
    ("chunkIndex.originalFileSize", 199),
    ("chunkIndex.transformedChunkSize", 64),
    ("chunkIndex.finalTransformedChunkSize", 8),
    ("chunkIndex.finalTransformedChunkSize", ...),
    ("segmentIndexes", []),
    ("segmentIndexes.offset", None),
    ("segmentIndexes.offset.position", 1),
    ("segmentIndexes.offset.size", -1),
    ("segmentIndexes.offset.size", 28),
    ("segmentIndexes.timestamp.position", 0),
    ("segmentIndexes.timestamp.size", 2**31 - 1),
    ("segmentIndexes.leaderEpoch", ...),
    ("segmentIndexes.transaction", ...),
    ("segmentIndexes.transaction", 5),
    ("segmentIndexes.transaction.size", 2**31 - 1),
    ("encryption", None),
    ("encryption", ...),
    ("encryption", "yes"),
    ("encryption.dataKey", "no colon"),
    ("encryption.dataKey", "key1:"),
    ("encryption.dataKey", ":AAAA"),
    ("encryption.dataKey", "key1:AA:AA"),
    ("encryption.dataKey", "key1:\u00e4"),
    ("encryption.aad", "*"),
    ("encryption.aad", ...),
    ("remoteLogSegmentMetadata", 1),
    ("remoteLogSegmentMetadata.startOffset", -1),
    ("remoteLogSegmentMetadata.endOffset", -2),
    ("remoteLogSegmentMetadata.endOffset", 2**63),
    ("remoteLogSegmentMetadata.maxTimestampMs", -2),
    ("remoteLogSegmentMetadata.segmentLeaderEpochs", {"-1": 0}),
    ("remoteLogSegmentMetadata.segmentLeaderEpochs", {"\u0663": 0}),
    ("remoteLogSegmentMetadata.segmentLeaderEpochs", {"2147483648": 0}),
    ("remoteLogSegmentMetadata.txnIdxEmpty", "no"),
    ("remoteLogSegmentMetadata.remoteLogSegmentId.id", 7),
]


@pytest.mark.parametrize(("path", "value"), LIES, ids=[f"{path}={value!s:.20}" for path, value in LIES])
def test_wrong_values_in_a_manifest_are_refused(path: str, value: object) -> None:
    with pytest.raises(ArchiveError) as refused:
        read(with_field(path, value))
    assert refused.value.reason is Reason.MANIFEST_INVALID
    str(refused.value).encode("utf-8")


def test_optional_fields_of_a_manifest_may_be_missing() -> None:
    described = read(with_field("remoteLogSegmentMetadata.txnIdxEmpty", None)).described
    assert described is not None
    assert described.txn_index_empty is None
    assert read(with_field("remoteLogSegmentMetadata", ...)).described is None
    assert read(with_field("segmentIndexes.transaction", None)).indexes.transaction is None
    assert read(with_field("remoteLogSegmentMetadata.of a later broker", {"a": [1]})).encryption is not None


def test_largest_leader_epoch_and_chunks_of_one_byte_are_read() -> None:
    described = read(with_field("remoteLogSegmentMetadata.segmentLeaderEpochs", {"2147483647": 5})).described
    assert described is not None
    assert described.leader_epochs == ((2**31 - 1, 5),)
    manifest = read(manifest_of(write_aiven_segment(AivenSegment(log=bytes(3)), chunk_bytes=1)))
    assert manifest.chunk_index.chunk_count == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "manifest is not a JSON object: expected an object, found [1]"),
        (b'{"version":"3"}', "manifest has an unknown version: expected \"1\", found '3'"),
        (b"[" * 100_000, "manifest is cut or is not JSON: expected a JSON object, found nesting that is too deep"),
    ],
    ids=["list", "version", "deep"],
)
def test_refused_manifest_shows_what_was_found(content: bytes, message: str) -> None:
    with pytest.raises(ArchiveError) as refused:
        read(content)
    assert str(refused.value) == message
    assert refused.value.position == -1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe{}",
        b'{"version":"1"}{}',
        b"[" * 100_000,
        b'{"version":' + b"9" * 100_000 + b"}",
        b'{"version":NaN}',
        b'{"version":"\\ud800"}',
        b" " * (MAX_MANIFEST_BYTES + 1),
    ],
    ids=["empty", "null", "list", "utf-16", "two", "deep", "digits", "nan", "surrogate", "large"],
)
def test_content_that_is_not_a_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(ArchiveError) as refused:
        read(content)
    assert refused.value.reason is Reason.MANIFEST_INVALID
    str(refused.value).encode("utf-8")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from([0, 1, -1, 2**31 - 1, 2**31, 2**63, "", "1", "fixed", "variable", "key1:AAAA", "KLUv/SAE"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def places(value: object, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*at, name)
            yield from places(inner, (*at, name))


@given(st.data())
@examples(400)
def test_any_json_is_a_manifest_or_an_archive_error(data: st.DataObject) -> None:
    manifest = json.loads(data.draw(st.sampled_from(EXAMPLES)))
    for _ in range(data.draw(st.integers(1, 3))):
        *above, name = data.draw(st.sampled_from(sorted(places(manifest))))
        place = manifest
        for each in above:
            place = place[each] if isinstance(place, dict) and each in place else {}
        if not isinstance(place, dict):
            continue
        if data.draw(st.booleans()):
            place[name] = copy.deepcopy(data.draw(JSON_VALUES))
        else:
            place.pop(name, None)
    content = json.dumps(manifest).encode()
    tracemalloc.start()
    try:
        found = read(content)
        # An accepted manifest is consistent: every chunk is in the object, after the previous one.
        index = found.chunk_index
        assert index.stored_start(0) == 0
        assert all(index.stored_start(n) < index.stored_start(n + 1) for n in range(min(index.chunk_count, 50)))
    except ArchiveError as refused:
        assert refused.reason is Reason.MANIFEST_INVALID  # noqa: PT017 - either is right, nothing else is
        str(refused).encode("utf-8")
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 4 * 1024 * 1024


@given(st.sampled_from(EXAMPLES), st.data())
def test_a_manifest_with_changed_bytes_is_a_manifest_or_an_archive_error(content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(damaged))
    except ArchiveError as refused:
        assert refused.reason is Reason.MANIFEST_INVALID  # noqa: PT017 - either is right, nothing else is
