"""Define an aborted transaction, as in Kafka's transaction index."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """Records of the producer from `first_offset` to the abort marker at `last_offset` do not count.

    `last_stable_offset` is that of the partition when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
