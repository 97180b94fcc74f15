"""limits: how much memory may one batch ask for?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """A batch longer than `max_batch_bytes`, or whose records decompress to more than `max_decompressed_bytes`, is
    damage."""

    max_batch_bytes: int
    max_decompressed_bytes: int
