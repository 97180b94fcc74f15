"""flexible_encoding: how does Kafka write the fields of a message whose version is flexible?

    integers         big endian
    number           unsigned varint: seven bits a byte, the lowest first, five bytes at most
    compact string   number length + 1 (0: null), UTF-8
    compact bytes    number length + 1 (0: null), the bytes
    compact array    number count + 1 (0: null), the elements
    uuid             16 bytes
    tagged fields    number count, then { number tag, number size, the bytes }, tags ascending; they end every struct

Read as Kafka's generated classes do over `ByteBufferAccessor`; numbers may be longer than they need to be.

Refused when read (`ArchiveError` of the format's reason, with the field's position): what leaves the buffer, numbers
that do not end or are above int32 (Kafka takes these for negative), null where there is no null, strings above 32767
bytes or not UTF-8, arrays of more elements than bytes are left, tags that do not ascend. Refused when written
(`UsageError`): what could not be read back.
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
    """A place in the bytes of one message; `what` of every method is the field's name in errors."""

    buffer: memoryview
    reason: Reason
    position: int = 0

    def read_int(self, size_bytes: int, what: str) -> int:
        """A signed integer of that size."""
        return int.from_bytes(self._take(size_bytes, what), "big", signed=True)

    def read_number(self, what: str) -> int:
        """An unsigned varint, between 0 and the largest int32."""
        start, value = self.position, 0
        for count in range(_MAX_NUMBER_BYTES):
            byte = self._take(1, what)[0]
            value |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                # The fifth byte has three bits more than an int32: Kafka drops them.
                return self._require_int32(value & 0xFFFFFFFF, start, what)
        raise self.refusal(f"{what} does not end", start, "5 bytes at most", "more")

    def require_number(self, what: str, expected: int) -> None:
        """Refuse another number."""
        start = self.position
        found = self.read_number(what)
        if found != expected:
            raise self.refusal(f"{what} is not supported", start, str(expected), str(found))

    def read_uuid(self, what: str) -> str:
        """Kafka's text of the 16 bytes."""
        return uuid_text(bytes(self._take(16, what)))

    def read_string(self, what: str) -> str:
        """A compact string that is not null."""
        start = self.position
        length = self._read_length(what)
        if length > MAX_STRING_BYTES:
            raise self.refusal(f"{what} is too long", start, f"{MAX_STRING_BYTES} bytes at most", str(length))
        raw = bytes(self._take(length, what))
        try:
            return raw.decode()
        except UnicodeDecodeError as broken:
            raise self.refusal(f"{what} is not UTF-8", start, "UTF-8", raw[broken.start : broken.end].hex()) from broken

    def read_nullable_bytes(self, what: str) -> bytes | None:
        """Compact bytes; null and empty are not the same."""
        length = self.read_number(what) - 1
        return None if length < 0 else bytes(self._take(length, what))

    def read_count(self, what: str) -> int:
        """The count of elements of a compact array that is not null."""
        start = self.position
        count = self._read_length(what)
        left = len(self.buffer) - self.position
        if count > left:
            raise self.refusal(f"{what} cannot be as many", start, f"{left} at most", str(count))
        return count

    def read_tagged_fields(self, what: str) -> TaggedFields:
        """The tagged fields that end a struct."""
        fields: list[tuple[int, bytes]] = []
        last = -1
        for _ in range(self.read_number(f"count of tags of {what}")):
            start = self.position
            tag = self.read_number(f"tag of {what}")
            if tag <= last:
                raise self.refusal(f"tags of {what} do not ascend", start, f"above {last}", str(tag))
            size = self.read_number(f"size of tag {tag} of {what}")
            fields.append((tag, bytes(self._take(size, f"tag {tag} of {what}"))))
            last = tag
        return tuple(fields)

    def require_end(self, what: str) -> None:
        """Refuse bytes behind the message."""
        left = len(self.buffer) - self.position
        if left:
            raise self.refusal(f"{what} is longer than its fields", self.position, "the end", f"{left} bytes")

    def refusal(self, message: str, position: int, expected: str, found: str) -> ArchiveError:
        """The error to raise for these bytes."""
        return ArchiveError(self.reason, message, position=position, expected=expected, found=found)

    def _read_length(self, what: str) -> int:
        start = self.position
        length = self.read_number(what) - 1
        if length < 0:
            raise self.refusal(f"{what} is null", start, "a length", "null")
        return length

    def _require_int32(self, value: int, position: int, what: str) -> int:
        if value > INT32_MAX:
            raise self.refusal(f"{what} is too large", position, f"{INT32_MAX} at most", str(value))
        return value

    def _take(self, size_bytes: int, what: str) -> memoryview:
        start, end = self.position, self.position + size_bytes
        if end > len(self.buffer):
            left = len(self.buffer) - start
            raise self.refusal(f"message ends inside {what}", start, f"{size_bytes} bytes", f"{left} bytes")
        self.position = end
        return self.buffer[start:end]


def write_int(out: bytearray, value: int, size_bytes: int) -> None:
    """A signed integer of that size."""
    try:
        out += value.to_bytes(size_bytes, "big", signed=True)
    except OverflowError as broken:
        raise UsageError(f"{value} cannot be written as an integer of {size_bytes} bytes") from broken


def write_number(out: bytearray, value: int) -> None:
    """An unsigned varint in as few bytes as it needs."""
    if not 0 <= value <= INT32_MAX:
        raise UsageError(f"{value} cannot be written as a number between 0 and {INT32_MAX}")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_string(out: bytearray, text: str) -> None:
    """A compact string."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as broken:
        raise UsageError(f"{text!r} cannot be written as UTF-8") from broken
    if len(raw) > MAX_STRING_BYTES:
        raise UsageError(f"a string of {len(raw)} bytes cannot be written, {MAX_STRING_BYTES} are allowed")
    write_nullable_bytes(out, raw)


def write_nullable_bytes(out: bytearray, value: bytes | None) -> None:
    """Compact bytes."""
    write_number(out, 0 if value is None else len(value) + 1)
    out += value or b""


def write_tagged_fields(out: bytearray, fields: TaggedFields) -> None:
    """The tagged fields that end a struct."""
    write_number(out, len(fields))
    last = -1
    for tag, content in fields:
        if tag <= last:
            raise UsageError(f"tag {tag} cannot be written behind tag {last}")
        write_number(out, tag)
        write_number(out, len(content))
        out += content
        last = tag
