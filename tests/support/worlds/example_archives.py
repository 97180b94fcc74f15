"""example_archives: which archives must every layout be able to read, and what is true of each?

An example is the objects of one archive, of the same two golden partitions for each layout, and the original bytes of
every file: those that a broker gave to be stored. A layout is added by adding a function to `EXAMPLES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from builders.aiven_writer import AivenSegment, read_keys, write_aiven_segment
from builders.mirror_writer import SIDE_FILES, mirrored_name
from coldlog.archive.layouts.aiven_layout import AivenLayout
from coldlog.archive.layouts.layout import ArchiveLayout, SegmentFileKind
from coldlog.archive.layouts.local_tiered_storage import SUFFIXES, LocalTieredStorageLayout
from coldlog.archive.layouts.log_directories_layout import LogDirectoriesLayout
from coldlog.archive.stores.object_store import ObjectStore
from worlds.aiven_sample import ORIGINAL_NAMES, key_files
from worlds.kafka_sample import TIERED_STORAGE, TrueSegment, true_segments

PLACES = (("payments", 1), ("payments", 2))
Place = tuple[str, int, int]
"""Topic, partition and start offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An archive: `files` are the original bytes by segment and kind; a kind that is not named was not stored."""

    objects: Mapping[str, bytes]
    files: Mapping[Place, Mapping[SegmentFileKind, bytes]]
    strays: tuple[str, ...]
    """Names that may lie in it and are part of no segment, files all."""
    open_layout: Callable[[ObjectStore], ArchiveLayout]


def golden_segments() -> list[TrueSegment]:
    """The finished segments of `PLACES`, by partition and offset."""
    finished = true_segments("COPY_SEGMENT_FINISHED")
    chosen = [each for each in finished if (each["topic"], each["partition"]) in PLACES]
    return sorted(chosen, key=lambda each: (each["partition"], each["start_offset"]))


def original_files(segment: TrueSegment) -> dict[SegmentFileKind, bytes]:
    """As a broker wrote them."""
    paths = {kind: TIERED_STORAGE / f"{segment['path']}{suffix}" for kind, suffix in SUFFIXES.items()}
    return {kind: path.read_bytes() for kind, path in paths.items() if path.exists()}


def place_of(segment: TrueSegment) -> Place:
    """Where it begins."""
    return segment["topic"], segment["partition"], segment["start_offset"]


def local_tiered_storage() -> Example:
    """The tree as the broker left it."""
    segments = golden_segments()
    files = {place_of(segment): original_files(segment) for segment in segments}
    objects = {
        f"{segment['path']}{SUFFIXES[kind]}": content
        for segment in segments
        for kind, content in files[place_of(segment)].items()
    }
    folder = segments[0]["path"].rpartition("/")[0]
    return Example(
        objects=objects,
        files=files,
        strays=(f"{folder}/00000000000000000000.log", f"{folder}/{segments[0]['path'][-43:]}.log.tmp", "readme"),
        open_layout=lambda store: LocalTieredStorageLayout(store=store),
    )


def _mirror(above: str, kinds: frozenset[SegmentFileKind], *, beside: Mapping[str, bytes]) -> Example:
    segments = golden_segments()
    objects: dict[str, bytes] = {}
    files: dict[Place, dict[SegmentFileKind, bytes]] = {}
    last = {segment["partition"]: segment for segment in segments}
    for segment in segments:
        folder = f"{above}{segment['topic']}-{segment['partition']}"
        objects |= {f"{folder}/{name}": content for name, content in beside.items()}
        own = original_files(segment)
        stored = {kind: content for kind, content in own.items() if kind is SegmentFileKind.LOG or kind in kinds}
        objects |= {f"{folder}/{mirrored_name(segment, kind)}": content for kind, content in stored.items()}
        if segment is last[segment["partition"]]:
            stored.pop(SegmentFileKind.PRODUCER_SNAPSHOT, None)
        elif SegmentFileKind.LEADER_EPOCH_CHECKPOINT in kinds:
            newest = original_files(last[segment["partition"]])
            stored[SegmentFileKind.LEADER_EPOCH_CHECKPOINT] = newest[SegmentFileKind.LEADER_EPOCH_CHECKPOINT]
        files[place_of(segment)] = stored
    folder = f"{above}payments-1"
    strays = ("00000000000000000000.log.deleted", "00000000000000009999.index", "0.log", "00000000000000000007.txt")
    return Example(
        objects=objects,
        files=files,
        strays=tuple(f"{folder}/{name}" for name in strays),
        open_layout=lambda store: LogDirectoriesLayout(
            store=store, above_partitions=above.replace("01/", "*/").strip("/")
        ),
    )


def log_directories() -> Example:
    """A mirror of all that lies in a log directory."""
    return _mirror("", SIDE_FILES, beside={"partition.metadata": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n"})


def uploaded_log_directories() -> Example:
    """What Pinterest's uploader leaves, with two bits of entropy before the cluster's name."""
    kinds = frozenset({SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX})
    return _mirror("01/prod/", kinds, beside={"offset.wm": b"00000000000000000000", "_metadata": b"{}"})


def _aiven(*, is_compressed: bool, is_encrypted: bool, prefix: str = "") -> Example:
    """The same segments as the plugin stores them; log chunks of 4 KiB."""
    segments = golden_segments()
    keys = read_keys("key1", key_files("encrypted")["key1"].read_bytes()) if is_encrypted else None
    objects: dict[str, bytes] = {}
    files: dict[Place, dict[SegmentFileKind, bytes]] = {}
    for segment in segments:
        own = files[place_of(segment)] = original_files(segment)
        written = AivenSegment(
            topic=segment["topic"],
            topic_id=segment["topic_id"],
            partition=segment["partition"],
            start_offset=segment["start_offset"],
            segment_id=segment["segment_id"],
            log=own[SegmentFileKind.LOG],
            indexes={name: own.get(kind) for kind, name in ORIGINAL_NAMES.items() if kind is not SegmentFileKind.LOG},
        )
        objects |= write_aiven_segment(written, chunk_bytes=4096, is_compressed=is_compressed, keys=keys, prefix=prefix)
    topic = f"{prefix}{segments[0]['topic']}-{segments[0]['topic_id']}"
    stem = f"{segments[0]['start_offset']:020d}-{segments[0]['segment_id']}"
    return Example(
        objects=objects,
        files=files,
        strays=(f"{prefix}readme", f"{topic}/note", f"{topic}/1/{stem}.index", f"{topic}/1/{stem}.rsm-manifest.tmp"),
        open_layout=lambda store: AivenLayout(store=store, key_prefixes=(prefix,)),
    )


def aiven() -> Example:
    """Neither compressed nor encrypted."""
    return _aiven(is_compressed=False, is_encrypted=False)


def aiven_compressed() -> Example:
    """Compressed, below a prefix that also begins the names of topics."""
    return _aiven(is_compressed=True, is_encrypted=False, prefix="tiered/prod-")


def aiven_compressed_and_encrypted() -> Example:
    """Both, in a directory."""
    return _aiven(is_compressed=True, is_encrypted=True, prefix="tiered/")


EXAMPLES: Mapping[str, Callable[[], Example]] = {
    each.__name__: each
    for each in (
        local_tiered_storage,
        log_directories,
        uploaded_log_directories,
        aiven,
        aiven_compressed,
        aiven_compressed_and_encrypted,
    )
}
