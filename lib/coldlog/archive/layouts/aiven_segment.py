"""Read the objects of one segment that the Aiven plugin uploaded.

An opened segment has its manifest, which was compared with the segment's name and the listed sizes, and the cipher that
decrypts it. `OpenedSegments` keeps the segments that were opened last. Pickling drops them, because a key must not
leave its process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from coldlog.archive.layouts.aiven_keys import ENVIRONMENT_VARIABLE, find_private_key
from coldlog.archive.layouts.layout import (
    SMALL_FILE_LIMIT_BYTES,
    BundleKind,
    ListedSegment,
    ObjectKind,
    SegmentFileKind,
    SegmentObject,
)
from coldlog.archive.layouts.plain_objects import read_small_object
from coldlog.archive.stores.object_names import require_range
from coldlog.archive.stores.object_store import ObjectStore
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.aiven.chunks import restore_chunk
from coldlog.formats.aiven.encryption import ChunkCipher
from coldlog.formats.aiven.manifest import (
    MAX_MANIFEST_BYTES,
    Encryption,
    IndexRange,
    SegmentManifest,
    read_aiven_manifest,
)
from coldlog.formats.limits import MAX_CHUNK_BYTES

KEPT_SEGMENTS = 32


@dataclass(slots=True, kw_only=True)
class OpenedSegment:
    """A segment whose manifest was read; `last_chunk` is the number and content of the chunk that was read last."""

    manifest: SegmentManifest
    log: SegmentObject
    indexes: SegmentObject
    cipher: ChunkCipher | None
    last_chunk: tuple[int, memoryview] | None = None

    @property
    def has_txn_index(self) -> bool:
        """The segment has a transaction index."""
        return self.manifest.indexes.transaction is not None

    def read_log_range(self, store: ObjectStore, position: int, length: int, until: int | None = None) -> memoryview:
        """See ArchiveLayout."""
        require_range(position, length)
        index = self.manifest.chunk_index
        end = min(position + length, index.original_bytes)
        chunks = index.chunks_between(position, end)
        if not chunks:
            return memoryview(b"")
        if not self.manifest.is_transformed:
            return store.read_range(self.log.name, position, end - position, until)
        start = index.original_start(chunks.start)
        window = np.empty(index.original_start(chunks.stop) - start, dtype=np.uint8).data
        self._fill(store, chunks, window, until)
        last = index.original_start(chunks[-1])
        self.last_chunk = chunks[-1], window[last - start :].toreadonly()
        return window[position - start : end - start].toreadonly()

    def read_small_file(self, store: ObjectStore, kind: SegmentFileKind) -> memoryview:
        """See ArchiveLayout."""
        location = self._range_of(kind)
        if location is None:
            raise ArchiveError(Reason.OBJECT_MISSING, f"manifest names no {kind.value}", object_name=self.indexes.name)
        if location.size_bytes > SMALL_FILE_LIMIT_BYTES:
            raise ArchiveError(
                Reason.OBJECT_UNREADABLE,
                f"{kind.value} is too large for its kind",
                object_name=self.indexes.name,
                expected=f"at most {SMALL_FILE_LIMIT_BYTES} bytes",
                found=f"{location.size_bytes} bytes",
            )
        if not location.size_bytes:
            return memoryview(b"")
        stored = _read_whole(store, self.indexes, location.position, location.size_bytes, Reason.INDEXES_SIZE_DIFFERS)
        try:
            return stored if self.cipher is None else self.cipher.decrypt(stored)
        except ArchiveError as damage:
            raise damage.replaced(object_name=self.indexes.name, position=location.position) from None

    def _fill(self, store: ObjectStore, chunks: range, window: memoryview, until: int | None) -> None:
        """Restore the chunks into the window; the chunk that was read last is copied."""
        index = self.manifest.chunk_index
        start = index.original_start(chunks.start)
        if self.last_chunk is not None and self.last_chunk[0] == chunks.start:
            kept = self.last_chunk[1]
            window[: len(kept)] = kept
            chunks = chunks[1:]
        if not chunks:
            return
        stored_start, stored_end = index.stored_start(chunks.start), index.stored_start(chunks.stop)
        stored_until = None if until is None else index.stored_start(index.chunks_between(0, until).stop)
        stored = _read_whole(
            store, self.log, stored_start, stored_end - stored_start, Reason.LOG_SIZE_DIFFERS, stored_until
        )
        for chunk in chunks:
            chunk_start, chunk_end = index.stored_start(chunk), index.stored_start(chunk + 1)
            output = window[index.original_start(chunk) - start : index.original_start(chunk + 1) - start]
            try:
                restore_chunk(
                    stored[chunk_start - stored_start : chunk_end - stored_start],
                    output,
                    self.cipher,
                    is_compressed=self.manifest.is_compressed,
                )
            except ArchiveError as damage:
                raise damage.replaced(object_name=self.log.name, position=chunk_start) from None

    def _range_of(self, kind: SegmentFileKind) -> IndexRange | None:
        ranges = self.manifest.indexes
        return {
            SegmentFileKind.OFFSET_INDEX: ranges.offset,
            SegmentFileKind.TIME_INDEX: ranges.timestamp,
            SegmentFileKind.TXN_INDEX: ranges.transaction,
            SegmentFileKind.PRODUCER_SNAPSHOT: ranges.producer_snapshot,
            SegmentFileKind.LEADER_EPOCH_CHECKPOINT: ranges.leader_epoch,
        }[kind]


class OpenedSegments(threading.local):
    """The at most `KEPT_SEGMENTS` segments that were opened last; only one of them keeps its last chunk. Each thread
    has its own, because all threads of a process share the layout of a bucket. Pickling drops them."""

    def __init__(self) -> None:
        self._opened: OrderedDict[tuple[SegmentObject, ...], OpenedSegment] = OrderedDict()

    def open(self, store: ObjectStore, segment: ListedSegment) -> OpenedSegment:
        """The segment with its manifest and, if it is encrypted, its key.

        `ArchiveError`: OBJECT_MISSING, MANIFEST_INVALID, a stored size that differs from the manifest
        (LOG_SIZE_DIFFERS, INDEXES_SIZE_DIFFERS), DECRYPTION_KEY_MISSING with the key's id as `expected`,
        DECRYPTION_FAILED.
        """
        opened = self._opened.get(segment.objects)
        if opened is None:
            opened = _open(store, segment)
        previous = next(reversed(self._opened.values()), opened)
        if previous is not opened:
            previous.last_chunk = None
        self._opened[segment.objects] = opened
        self._opened.move_to_end(segment.objects)
        if len(self._opened) > KEPT_SEGMENTS:
            self._opened.popitem(last=False)
        return opened

    def __reduce__(self) -> tuple[object, ...]:
        return OpenedSegments, ()


def _open(store: ObjectStore, segment: ListedSegment) -> OpenedSegment:
    manifest_object, log, indexes = (
        _get_object(segment, kind) for kind in (BundleKind.MANIFEST, SegmentFileKind.LOG, BundleKind.INDEXES)
    )
    try:
        manifest = _read_manifest(store, manifest_object)
        _require_same_segment(manifest, segment)
        cipher = None if manifest.encryption is None else _unlock(manifest.encryption)
    except ArchiveError as damage:
        raise damage if damage.object_name else damage.with_object_name(manifest_object.name) from None
    _require_size(log, manifest.chunk_index.stored_bytes, Reason.LOG_SIZE_DIFFERS)
    _require_size(indexes, manifest.indexes.stored_bytes, Reason.INDEXES_SIZE_DIFFERS)
    return OpenedSegment(manifest=manifest, log=log, indexes=indexes, cipher=cipher)


def _read_manifest(store: ObjectStore, listed: SegmentObject) -> SegmentManifest:
    if listed.size_bytes > MAX_MANIFEST_BYTES:
        raise _differs(Reason.MANIFEST_INVALID, "manifest is too large", MAX_MANIFEST_BYTES, listed.size_bytes)
    manifest = read_aiven_manifest(read_small_object(store, listed))
    if manifest.is_transformed and manifest.chunk_index.largest_chunk_bytes > MAX_CHUNK_BYTES:
        raise _differs(
            Reason.DECOMPRESSION_LIMIT,
            "chunks of the log are larger than the limit",
            MAX_CHUNK_BYTES,
            manifest.chunk_index.largest_chunk_bytes,
        )
    return manifest


def _differs(reason: Reason, message: str, limit_bytes: int, found_bytes: int) -> ArchiveError:
    return ArchiveError(reason, message, expected=f"at most {limit_bytes} bytes", found=f"{found_bytes} bytes")


def _require_same_segment(manifest: SegmentManifest, segment: ListedSegment) -> None:
    found = manifest.described
    if found is None:
        return
    in_manifest = f"{found.topic}-{found.topic_id}/{found.partition}/{found.start_offset:020d}-{found.segment_id}"
    listed = f"{segment.topic}-{segment.topic_id}/{segment.partition}/{segment.start_offset:020d}-{segment.segment_id}"
    if in_manifest != listed:
        raise ArchiveError(
            Reason.MANIFEST_INVALID,
            "manifest belongs to another segment",
            expected=listed,
            found=ascii(in_manifest)[1:301],
        )


def _unlock(encryption: Encryption) -> ChunkCipher:
    key = find_private_key(encryption.key_id)
    if key is None:
        raise ArchiveError(
            Reason.DECRYPTION_KEY_MISSING,
            f"segment is encrypted and {ENVIRONMENT_VARIABLE} names no file for its private key; add the file and run "
            "again",
            expected=encryption.key_id.encode("utf-8", "backslashreplace").decode("utf-8"),
            found="no such key",
        )
    return key.unwrap(encryption)


def _get_object(segment: ListedSegment, kind: ObjectKind) -> SegmentObject:
    listed = segment.find_object(kind)
    if listed is None:
        stem = segment.objects[0].name.rpartition(".")[0] if segment.objects else segment.segment_id
        suffix = "rsm-manifest" if kind is BundleKind.MANIFEST else kind.value
        raise ArchiveError(
            Reason.OBJECT_MISSING, "segment was listed without this object", object_name=f"{stem}.{suffix}"
        )
    return listed


def _require_size(listed: SegmentObject, stored_bytes: int, reason: Reason) -> None:
    if listed.size_bytes != stored_bytes:
        raise ArchiveError(
            reason,
            "object size differs from the segment's manifest: the upload was cut, or it belongs to another segment",
            object_name=listed.name,
            position=min(listed.size_bytes, stored_bytes),
            expected=f"{stored_bytes} bytes",
            found=f"{listed.size_bytes} bytes",
        )


def _read_whole(
    store: ObjectStore,
    listed: SegmentObject,
    position: int,
    length: int,
    reason: Reason,
    until: int | None = None,
) -> memoryview:
    content = store.read_range(listed.name, position, length, until)
    if len(content) < length:
        raise ArchiveError(
            reason,
            "object is shorter than when it was listed",
            object_name=listed.name,
            position=position + len(content),
            expected=f"{listed.size_bytes} bytes",
            found=f"{position + len(content)} bytes",
        )
    return content
