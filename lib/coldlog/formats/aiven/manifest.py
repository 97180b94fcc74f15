"""Read the manifest of a segment that the Aiven plugin uploaded.

JSON, version "1" (io.aiven.kafka.tieredstorage.manifest: SegmentManifestV1, SegmentIndexesV1,
SegmentEncryptionMetadataV1):

    version                    "1"
    chunkIndex                 of the log, see chunk_index
      type                     "fixed" or "variable"
      originalChunkSize        int32, greater than 0
      originalFileSize         int32
      transformedChunkSize     int32, fixed only
      finalTransformedChunkSize  int32, fixed only
      transformedChunks        base64, variable only
    segmentIndexes             ranges of the object `.indexes`: offset, timestamp, producerSnapshot, leaderEpoch,
      position, size           transaction (null: none), one after another in this order
    compression                true: each chunk of the log is a zstd frame; the indexes are never compressed
    encryption                 missing or null: neither log nor indexes are encrypted
      dataKey                  "<id of the key pair>:<base64 of the wrapped data key>"
      aad                      base64
    remoteLogSegmentMetadata   the broker's metadata of the upload; the plugin writes it and does not read it

Encryption makes chunks and indexes longer by `ENCRYPTION_OVERHEAD_BYTES`; an empty index stays empty. Fields with other
names are refused, as the plugin does (otherwise `encryption` with a changed letter would mean no encryption). Only
`remoteLogSegmentMetadata` may have other fields, because they depend on the broker's version.

Refused (`MANIFEST_INVALID`): anything but a JSON object of this shape, with the position if the JSON is cut; numbers
below zero or beyond int32; ranges with gaps or overlaps; sizes that do not match compression and encryption; more than
`MAX_MANIFEST_BYTES`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.aiven.chunk_index import (
    INT32_MAX,
    ChunkIndex,
    FixedChunkIndex,
    read_variable_chunk_index,
    refusal,
)

MAX_MANIFEST_BYTES = 8 * 1024 * 1024
ENCRYPTION_OVERHEAD_BYTES = 28
"""An initialization vector of 12 bytes and a tag of 16."""
_MANIFEST_NAMES = (
    "version", "chunkIndex", "segmentIndexes", "compression", "encryption", "remoteLogSegmentMetadata",
)  # fmt: skip
_INDEX_NAMES = ("offset", "timestamp", "producerSnapshot", "leaderEpoch", "transaction")
_SIZE_NAMES = ("type", "originalChunkSize", "originalFileSize")
_INT64_MAX = (1 << 63) - 1
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRange:
    """The range of an index in the object `.indexes`."""

    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentIndexes:
    """The ranges of the small files; `transaction` is None if no transaction was aborted."""

    offset: IndexRange
    timestamp: IndexRange
    producer_snapshot: IndexRange
    leader_epoch: IndexRange
    transaction: IndexRange | None

    @property
    def stored_bytes(self) -> int:
        """The size of the object."""
        last = self.transaction or self.leader_epoch
        return last.position + last.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """The encryption of log and indexes: the wrapped data key, the id of the key pair that wrapped it, and the AAD."""

    key_id: str
    wrapped_data_key: bytes
    aad: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedSegment:
    """The segment for which the manifest was written; `txn_index_empty` is None if the broker did not write it."""

    topic: str
    topic_id: str
    partition: int
    segment_id: str
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    leader_epochs: tuple[tuple[int, int], ...]
    txn_index_empty: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentManifest:
    """A manifest with consistent parts."""

    chunk_index: ChunkIndex
    indexes: SegmentIndexes
    is_compressed: bool
    encryption: Encryption | None
    described: DescribedSegment | None

    @property
    def is_transformed(self) -> bool:
        """The object of the log differs from the log."""
        return self.is_compressed or self.encryption is not None


def read_aiven_manifest(content: memoryview) -> SegmentManifest:
    """The manifest, or `ArchiveError` (MANIFEST_INVALID)."""
    fields = _Fields(value=_read_json(content), path="")
    version = fields.get_text("version")
    if version != "1":
        raise refusal("manifest has an unknown version", '"1"', _shown(version))
    fields.require_names(*_MANIFEST_NAMES)
    is_compressed = fields.get_flag("compression")
    encryption = _read_encryption(fields)
    overhead_bytes = ENCRYPTION_OVERHEAD_BYTES if encryption else 0
    chunk_index = _read_chunk_index(fields.get_fields("chunkIndex"))
    chunk_index.require_sizes(is_compressed=is_compressed, overhead_bytes=overhead_bytes)
    return SegmentManifest(
        chunk_index=chunk_index,
        indexes=_read_indexes(fields.get_fields("segmentIndexes"), overhead_bytes),
        is_compressed=is_compressed,
        encryption=encryption,
        described=_read_described(fields),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    """A JSON object; `path` names it in errors."""

    value: Mapping[str, object]
    path: str

    def require_names(self, *names: str) -> None:
        """Refuse a field with another name."""
        for name in self.value:
            if name not in names:
                raise refusal(f"manifest has an unknown field {self.path}", ", ".join(names), _shown(name))

    def get_int(self, name: str, *, least: int = 0, most: int = INT32_MAX) -> int:
        found = self._get(name)
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise self.refusal(name, f"a number from {least} to {most}", found)
        return found

    def get_flag(self, name: str) -> bool:
        found = self._get(name)
        if not isinstance(found, bool):
            raise self.refusal(name, "true or false", found)
        return found

    def get_text(self, name: str) -> str:
        found = self._get(name)
        if not isinstance(found, str):
            raise self.refusal(name, "a text", found)
        return found

    def get_base64(self, name: str, text: str | None = None) -> bytes:
        found = self.get_text(name) if text is None else text
        try:
            return base64.b64decode(found, validate=True)
        except (binascii.Error, ValueError):
            raise self.refusal(name, "base64", "something else") from None

    def get_fields(self, name: str) -> _Fields:
        found = self._get(name)
        if not isinstance(found, dict):
            raise self.refusal(name, "an object", found)
        return _Fields(value=found, path=f"{self.path}{name}.")

    def find_fields(self, name: str) -> _Fields | None:
        return None if self.value.get(name) is None else self.get_fields(name)

    def refusal(self, name: str, expected: str, found: object) -> ArchiveError:
        return refusal(f"manifest has a wrong {self.path}{name}", expected, _shown(found))

    def _get(self, name: str) -> object:
        if name not in self.value:
            raise refusal(f"manifest has no {self.path}{name}", "the field", "none")
        return self.value[name]


def _read_json(content: memoryview) -> dict[str, object]:
    if len(content) > MAX_MANIFEST_BYTES:
        raise refusal("manifest is too large", f"at most {MAX_MANIFEST_BYTES} bytes", f"{len(content)}")
    try:
        text = str(content, "utf-8")
        found = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError as broken:
        raise _no_json(broken.start, "bytes that are not UTF-8") from None
    except json.JSONDecodeError as broken:
        raise _no_json(len(text[: broken.pos].encode("utf-8")), broken.msg) from None
    except RecursionError:
        raise _no_json(-1, "nesting that is too deep") from None
    except ValueError as broken:  # a number with thousands of digits, NaN
        raise _no_json(-1, str(broken)[:_SHOWN_CHARACTERS]) from None
    if not isinstance(found, dict):
        raise refusal("manifest is not a JSON object", "an object", _shown(found))
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _no_json(position: int, found: str) -> ArchiveError:
    return ArchiveError(
        Reason.MANIFEST_INVALID,
        "manifest is cut or is not JSON",
        position=position,
        expected="a JSON object",
        found=found,
    )


def _read_chunk_index(fields: _Fields) -> ChunkIndex:
    kind = fields.get_text("type")
    original_chunk_bytes = fields.get_int("originalChunkSize", least=1)
    original_bytes = fields.get_int("originalFileSize")
    if kind == "fixed":
        fields.require_names(*_SIZE_NAMES, "transformedChunkSize", "finalTransformedChunkSize")
        return FixedChunkIndex(
            original_chunk_bytes=original_chunk_bytes,
            original_bytes=original_bytes,
            stored_chunk_bytes=fields.get_int("transformedChunkSize"),
            last_stored_chunk_bytes=fields.get_int("finalTransformedChunkSize"),
        )
    if kind == "variable":
        fields.require_names(*_SIZE_NAMES, "transformedChunks")
        sizes = fields.get_text("transformedChunks")
        return read_variable_chunk_index(
            sizes, original_chunk_bytes=original_chunk_bytes, original_bytes=original_bytes
        )
    raise fields.refusal("type", '"fixed" or "variable"', kind)


def _read_indexes(fields: _Fields, overhead_bytes: int) -> SegmentIndexes:
    fields.require_names(*_INDEX_NAMES)
    end = 0

    def read_range(name: str) -> IndexRange:
        nonlocal end
        index = fields.get_fields(name)
        index.require_names("position", "size")
        position, size_bytes = index.get_int("position"), index.get_int("size")
        if position != end:
            raise index.refusal("position", f"{end}, the end of the previous range", position)
        if 0 < size_bytes <= overhead_bytes:
            raise index.refusal("size", f"0, or more than the {overhead_bytes} bytes of encryption", size_bytes)
        end = position + size_bytes
        return IndexRange(position=position, size_bytes=size_bytes)

    indexes = SegmentIndexes(
        offset=read_range("offset"),
        timestamp=read_range("timestamp"),
        producer_snapshot=read_range("producerSnapshot"),
        leader_epoch=read_range("leaderEpoch"),
        transaction=None if fields.value.get("transaction", "") is None else read_range("transaction"),
    )
    if end > INT32_MAX:
        raise refusal("the indexes are larger than one object can be", f"at most {INT32_MAX} bytes", f"{end}")
    return indexes


def _read_encryption(fields: _Fields) -> Encryption | None:
    encryption = fields.find_fields("encryption")
    if encryption is None:
        return None
    encryption.require_names("dataKey", "aad")
    key_id, colon, wrapped = encryption.get_text("dataKey").partition(":")
    if not key_id.strip() or not colon or not wrapped or ":" in wrapped:
        raise encryption.refusal("dataKey", "<key id>:<base64>", "something else")
    return Encryption(
        key_id=key_id, wrapped_data_key=encryption.get_base64("dataKey", wrapped), aad=encryption.get_base64("aad")
    )


def _read_described(fields: _Fields) -> DescribedSegment | None:
    metadata = fields.find_fields("remoteLogSegmentMetadata")
    if metadata is None:
        return None
    ids = metadata.get_fields("remoteLogSegmentId")
    topic_id_partition = ids.get_fields("topicIdPartition")
    topic_partition = topic_id_partition.get_fields("topicPartition")
    epochs = metadata.get_fields("segmentLeaderEpochs")
    return DescribedSegment(
        topic=topic_partition.get_text("topic"),
        topic_id=topic_id_partition.get_text("topicId"),
        partition=topic_partition.get_int("partition"),
        segment_id=ids.get_text("id"),
        start_offset=metadata.get_int("startOffset", most=_INT64_MAX),
        end_offset=metadata.get_int("endOffset", least=-1, most=_INT64_MAX),
        max_timestamp_ms=metadata.get_int("maxTimestampMs", least=-1, most=_INT64_MAX),
        leader_epochs=tuple(
            sorted((_epoch(epochs, text), epochs.get_int(text, most=_INT64_MAX)) for text in epochs.value)
        ),
        txn_index_empty=metadata.get_flag("txnIdxEmpty") if metadata.value.get("txnIdxEmpty") is not None else None,
    )


def _epoch(epochs: _Fields, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= INT32_MAX):
        raise epochs.refusal("a key", "a leader epoch", text)
    return int(text)


def _shown(found: object) -> str:
    return ascii(found)[:_SHOWN_CHARACTERS]
