"""Decrypt and decompress the chunks of a log that the Aiven plugin uploaded.

The plugin first compresses a chunk to one zstd frame and then encrypts it. A chunk must have exactly the size in the
chunk index: more bytes are `DECOMPRESSION_LIMIT`, fewer bytes or a damaged frame are `DECOMPRESSION_FAILED`, changes
after the encryption are `DECRYPTION_FAILED`. Changed bytes in a chunk that is not encrypted may remain unnoticed here:
the plugin's frames have no checksum, but the batches in them do.
"""

from __future__ import annotations

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.aiven.encryption import ChunkCipher
from coldlog.formats.kafka.compression import decompress_into

_ZSTD = 4


def restore_chunk(stored: memoryview, output: memoryview, cipher: ChunkCipher | None, *, is_compressed: bool) -> None:
    """Restore the original of `stored` into `output`, which has the original's size."""
    if not is_compressed:
        if cipher is None:
            output[:] = stored
        else:
            cipher.decrypt_into(stored, output)
        return
    plain = stored if cipher is None else cipher.decrypt(stored)
    try:
        written = decompress_into(_ZSTD, plain, output)
    except ArchiveError as damage:
        raise _refusal(damage.reason, len(output), damage.found) from None
    if written != len(output):
        raise _refusal(Reason.DECOMPRESSION_FAILED, len(output), f"{written} bytes")


def _refusal(reason: Reason, size_bytes: int, found: str) -> ArchiveError:
    return ArchiveError(reason, "chunk of the log cannot be decompressed", expected=f"{size_bytes} bytes", found=found)
