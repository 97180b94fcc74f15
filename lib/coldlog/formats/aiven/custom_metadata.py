"""aiven_custom_metadata: what does the Aiven plugin note of a segment in the metadata topic?

The custom metadata of COPY_SEGMENT_FINISHED, empty unless the plugin's `custom.metadata.fields.include` names some
(SegmentCustomMetadataField, SegmentCustomMetadataSerde): a struct of tagged fields alone, in Kafka's flexible encoding.

    tag 0   remote_size     zig-zag varint: bytes of the segment's objects together
    tag 1   object_prefix   compact string: the key prefix when it was uploaded
    tag 2   object_key      compact string: the key without prefix and suffix

The last two say where `.log` and `.indexes` lie after `key.prefix` was changed; the plugin itself seeks the manifest
under the new prefix and finds none. Other tags are passed over. Refused (`METADATA_EVENT_INVALID`): what leaves its
field or does not fill it.
"""

from __future__ import annotations

from dataclasses import dataclass

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.flexible_encoding import FlexibleReader

_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY = 0, 1, 2
_WHAT = "custom metadata"
_MAX_VARLONG_BYTES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenCustomMetadata:
    """What was noted; None where it was not."""

    remote_bytes: int | None = None
    object_prefix: str | None = None
    object_key: str | None = None


def read_aiven_custom_metadata(content: bytes) -> AivenCustomMetadata:
    """The noted fields; none of empty content."""
    if not content:
        return AivenCustomMetadata()
    reader = FlexibleReader(buffer=memoryview(content), reason=Reason.METADATA_EVENT_INVALID)
    fields = dict(reader.read_tagged_fields(_WHAT))
    reader.require_end(_WHAT)
    size, prefix, key = (fields.get(tag) for tag in (_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY))
    return AivenCustomMetadata(
        remote_bytes=None if size is None else _read_varlong(size),
        object_prefix=None if prefix is None else _read_string(prefix, "object_prefix"),
        object_key=None if key is None else _read_string(key, "object_key"),
    )


def _read_string(content: bytes, what: str) -> str:
    reader = FlexibleReader(buffer=memoryview(content), reason=Reason.METADATA_EVENT_INVALID)
    text = reader.read_string(what)
    reader.require_end(what)
    return text


def _read_varlong(content: bytes) -> int:
    """Seven bits a byte, the lowest first; zig-zag."""
    is_whole = 1 <= len(content) <= _MAX_VARLONG_BYTES and content[-1] < 0x80 and all(b >= 0x80 for b in content[:-1])
    if not is_whole:
        raise ArchiveError(
            Reason.METADATA_EVENT_INVALID, "remote_size is no number", expected="a varint", found=content[:16].hex()
        )
    raw = sum((byte & 0x7F) << 7 * at for at, byte in enumerate(content)) & ((1 << 64) - 1)
    return (raw >> 1) ^ -(raw & 1)
