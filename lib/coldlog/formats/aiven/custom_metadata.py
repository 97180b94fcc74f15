"""Read the custom metadata that the Aiven plugin adds to a segment's event in the metadata topic.

The custom metadata of COPY_SEGMENT_FINISHED is empty unless the plugin's `custom.metadata.fields.include` names fields
(SegmentCustomMetadataField, SegmentCustomMetadataSerde). It is a struct of only tagged fields, in Kafka's flexible
encoding:

    tag 0   remote_size     zig-zag varint: total bytes of the segment's objects
    tag 1   object_prefix   compact string: the key prefix at the time of the upload
    tag 2   object_key      compact string: the key without prefix and suffix

With the last two, `.log` and `.indexes` can be found after `key.prefix` was changed; the plugin itself looks for the
manifest under the new prefix and finds none. Other tags are skipped. Refused (`METADATA_EVENT_INVALID`): a value that
is longer or shorter than its field.
"""

from __future__ import annotations

from dataclasses import dataclass

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.remote_log.flexible_encoding import FlexibleReader

_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY = 0, 1, 2
_NAME = "custom metadata"
_MAX_VARLONG_BYTES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenCustomMetadata:
    """The fields; None for a missing field."""

    remote_bytes: int | None = None
    object_prefix: str | None = None
    object_key: str | None = None


def read_aiven_custom_metadata(content: bytes) -> AivenCustomMetadata:
    """The fields; all None for empty content."""
    if not content:
        return AivenCustomMetadata()
    reader = FlexibleReader(buffer=memoryview(content), reason=Reason.METADATA_EVENT_INVALID)
    fields = dict(reader.read_tagged_fields(_NAME))
    reader.require_end(_NAME)
    size, prefix, key = (fields.get(tag) for tag in (_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY))
    return AivenCustomMetadata(
        remote_bytes=None if size is None else _read_varlong(size),
        object_prefix=None if prefix is None else _read_string(prefix, "object_prefix"),
        object_key=None if key is None else _read_string(key, "object_key"),
    )


def _read_string(content: bytes, field: str) -> str:
    reader = FlexibleReader(buffer=memoryview(content), reason=Reason.METADATA_EVENT_INVALID)
    text = reader.read_string(field)
    reader.require_end(field)
    return text


def _read_varlong(content: bytes) -> int:
    """A zig-zag number: seven bits per byte, the lowest first."""
    is_whole = 1 <= len(content) <= _MAX_VARLONG_BYTES and content[-1] < 0x80 and all(b >= 0x80 for b in content[:-1])
    if not is_whole:
        raise ArchiveError(
            Reason.METADATA_EVENT_INVALID, "remote_size is not a number", expected="a varint", found=content[:16].hex()
        )
    raw = sum((byte & 0x7F) << 7 * at for at, byte in enumerate(content)) & ((1 << 64) - 1)
    return (raw >> 1) ^ -(raw & 1)
