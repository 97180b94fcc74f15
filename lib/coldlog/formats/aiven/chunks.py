"""aiven_chunks: what was a chunk of a log before the Aiven plugin compressed and encrypted it?

Compression comes before encryption, each chunk is a zstd frame of its own. A chunk has exactly the bytes that the chunk
index gives it: `DECOMPRESSION_LIMIT` for more, `DECOMPRESSION_FAILED` for fewer or for what is no frame,
`DECRYPTION_FAILED` for what was changed behind the encryption. Bytes that were changed in a chunk that is not encrypted
may pass: the plugin's frames have no checksum, the batches in them do.
"""

from __future__ import annotations

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.aiven.encryption import ChunkCipher
from coldlog.formats.kafka.compression import decompress_into

_ZSTD = 4


def restore_chunk(stored: memoryview, output: memoryview, cipher: ChunkCipher | None, *, is_compressed: bool) -> None:
    """Fills `output`, which has the size of the original, with the original of `stored`."""
    if not is_compressed:
        if cipher is None:
            output[:] = stored
        else:
            cipher.decrypt_into(stored, output)
        return
    plain = stored if cipher is None else cipher.decrypt(stored)
    try:
        written = decompress_into(_ZSTD, plain, output)
    except ArchiveError as wrong:
        raise _refusal(wrong.reason, len(output), wrong.found) from None
    if written != len(output):
        raise _refusal(Reason.DECOMPRESSION_FAILED, len(output), f"{written} bytes")


def _refusal(reason: Reason, size_bytes: int, found: str) -> ArchiveError:
    return ArchiveError(
        reason, "chunk of the log cannot be decompressed", expected=f"{size_bytes} bytes of it", found=found
    )
