"""Read and write the fields of messages in Kafka's flexible encoding.

    integers         big endian
    number           unsigned varint: seven bits per byte, the lowest first, at most five bytes
    compact string   number length + 1 (0: null), UTF-8
    compact bytes    number length + 1 (0: null), the bytes
    compact array    number count + 1 (0: null), the elements
    uuid             16 bytes
    tagged fields    number count, then { number tag, number size, the bytes }, tags ascending; they end every struct

Reading follows Kafka's generated classes with `ByteBufferAccessor`; a number may have more bytes than necessary.

Refused when reading (`ArchiveError` with the format's reason and the field's position): fields beyond the end of the
buffer, numbers that do not end or exceed int32 (Kafka reads these as negative), null in a field that is not nullable,
strings of more than 32767 bytes or not in UTF-8, arrays with more elements than remaining bytes, tags that do not
ascend. Refused when writing (`UsageError`): values that could not be read back.
"""

from __future__ import annotations

from dataclasses import dataclass

from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.model.ids import uuid_text

TaggedFields = tuple[tuple[int, bytes], ...]
"""Tags with their bytes, ascending."""

INT32_MAX = (1 << 31) - 1
MAX_STRING_BYTES = (1 << 15) - 1
_MAX_NUMBER_BYTES = 5


@dataclass(slots=True, kw_only=True)
class FlexibleReader:
    """A position in the bytes of one message; `field` is the field's name in errors."""

    buffer: memoryview
    reason: Reason
    position: int = 0

    def read_int(self, size_bytes: int, field: str) -> int:
        """A signed integer of this size."""
        return int.from_bytes(self._take(size_bytes, field), "big", signed=True)

    def read_number(self, field: str) -> int:
        """An unsigned varint, between 0 and the largest int32."""
        start, value = self.position, 0
        for count in range(_MAX_NUMBER_BYTES):
            byte = self._take(1, field)[0]
            value |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                # The fifth byte exceeds an int32 by three bits, which Kafka drops.
                return self._require_int32(value & 0xFFFFFFFF, start, field)
        raise self.refusal(f"{field} does not end", start, "at most 5 bytes", "more")

    def require_number(self, field: str, expected: int) -> None:
        """Refuse another number."""
        start = self.position
        found = self.read_number(field)
        if found != expected:
            raise self.refusal(f"{field} is not supported", start, str(expected), str(found))

    def read_uuid(self, field: str) -> str:
        """16 bytes, as Kafka's text."""
        return uuid_text(bytes(self._take(16, field)))

    def read_string(self, field: str) -> str:
        """A compact string that is not null."""
        start = self.position
        length = self._read_length(field)
        if length > MAX_STRING_BYTES:
            raise self.refusal(f"{field} is too long", start, f"at most {MAX_STRING_BYTES} bytes", str(length))
        raw = bytes(self._take(length, field))
        try:
            return raw.decode()
        except UnicodeDecodeError as broken:
            found = raw[broken.start : broken.end].hex()
            raise self.refusal(f"{field} is not UTF-8", start, "UTF-8", found) from broken

    def read_nullable_bytes(self, field: str) -> bytes | None:
        """Compact bytes; null differs from empty."""
        length = self.read_number(field) - 1
        return None if length < 0 else bytes(self._take(length, field))

    def read_count(self, field: str) -> int:
        """The number of elements of a compact array that is not null."""
        start = self.position
        count = self._read_length(field)
        remaining = len(self.buffer) - self.position
        if count > remaining:
            raise self.refusal(f"too many {field} for the message", start, f"at most {remaining}", str(count))
        return count

    def read_tagged_fields(self, field: str) -> TaggedFields:
        """The tagged fields at the end of a struct."""
        fields: list[tuple[int, bytes]] = []
        last = -1
        for _ in range(self.read_number(f"count of tags of {field}")):
            start = self.position
            tag = self.read_number(f"tag of {field}")
            if tag <= last:
                raise self.refusal(f"tags of {field} do not ascend", start, f"more than {last}", str(tag))
            size = self.read_number(f"size of tag {tag} of {field}")
            fields.append((tag, bytes(self._take(size, f"tag {tag} of {field}"))))
            last = tag
        return tuple(fields)

    def require_end(self, field: str) -> None:
        """Refuse bytes after the message."""
        remaining = len(self.buffer) - self.position
        if remaining:
            raise self.refusal(f"{field} is longer than its fields", self.position, "the end", f"{remaining} bytes")

    def refusal(self, message: str, position: int, expected: str, found: str) -> ArchiveError:
        """The error to raise for these bytes."""
        return ArchiveError(self.reason, message, position=position, expected=expected, found=found)

    def _read_length(self, field: str) -> int:
        start = self.position
        length = self.read_number(field) - 1
        if length < 0:
            raise self.refusal(f"{field} is null", start, "a length", "null")
        return length

    def _require_int32(self, value: int, position: int, field: str) -> int:
        if value > INT32_MAX:
            raise self.refusal(f"{field} is too large", position, f"at most {INT32_MAX}", str(value))
        return value

    def _take(self, size_bytes: int, field: str) -> memoryview:
        start, end = self.position, self.position + size_bytes
        if end > len(self.buffer):
            remaining = len(self.buffer) - start
            raise self.refusal(f"message ends inside {field}", start, f"{size_bytes} bytes", f"{remaining} bytes")
        self.position = end
        return self.buffer[start:end]


def write_int(out: bytearray, value: int, size_bytes: int) -> None:
    """Write a signed integer of this size."""
    try:
        out += value.to_bytes(size_bytes, "big", signed=True)
    except OverflowError as broken:
        raise UsageError(f"{value} cannot be written as an integer of {size_bytes} bytes") from broken


def write_number(out: bytearray, value: int) -> None:
    """Write an unsigned varint with as few bytes as possible."""
    if not 0 <= value <= INT32_MAX:
        raise UsageError(f"{value} cannot be written: a number must be between 0 and {INT32_MAX}")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_string(out: bytearray, text: str) -> None:
    """Write a compact string."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as broken:
        raise UsageError(f"{text!r} cannot be written as UTF-8") from broken
    if len(raw) > MAX_STRING_BYTES:
        raise UsageError(f"a string of {len(raw)} bytes cannot be written; at most {MAX_STRING_BYTES} are allowed")
    write_nullable_bytes(out, raw)


def write_nullable_bytes(out: bytearray, value: bytes | None) -> None:
    """Write compact bytes."""
    write_number(out, 0 if value is None else len(value) + 1)
    out += value or b""


def write_tagged_fields(out: bytearray, fields: TaggedFields) -> None:
    """Write the tagged fields at the end of a struct."""
    write_number(out, len(fields))
    last = -1
    for tag, content in fields:
        if tag <= last:
            raise UsageError(f"tag {tag} cannot be written after tag {last}; tags must ascend")
        write_number(out, tag)
        write_number(out, len(content))
        out += content
        last = tag
