"""Limit the memory that one batch, or one chunk of an archive, may need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """A batch with more than `max_batch_bytes`, or with records of more than `max_decompressed_bytes` after
    decompression, is damaged."""

    max_batch_bytes: int
    max_decompressed_bytes: int


MAX_CHUNK_BYTES = 256 * 1024 * 1024
"""A compressed or encrypted chunk is restored as a whole, so a larger chunk is refused. Aiven's plugin recommends 4 MiB
and limits its setting to 1 GiB."""
