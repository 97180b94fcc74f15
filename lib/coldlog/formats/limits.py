"""limits: how much memory may one batch, or one chunk of an archive, ask for?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """A batch longer than `max_batch_bytes`, or whose records decompress to more than `max_decompressed_bytes`, is
    damage."""

    max_batch_bytes: int
    max_decompressed_bytes: int


MAX_CHUNK_BYTES = 256 * 1024 * 1024
"""A storage plugin's chunk that is compressed or encrypted is restored as a whole: a larger one is refused. Aiven's
plugin recommends 4 MiB and bounds its setting at a GiB."""
