"""read_quotas: the settings of a read quota that processes share, and what they have taken of it."""

from __future__ import annotations

from pathlib import Path

from coldlog.tables.definitions.tier.tier_quotas import TIER_QUOTAS
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tiering.shared_quota import READERS


def shared_quota(bytes_per_second: int) -> tuple[str, str]:
    """Return the settings, as after `--set`."""
    return f"remote.log.manager.fetch.max.bytes.per.second={bytes_per_second}", "fetch.share_quota=true"


def taken_bytes(uri: str | Path) -> int:
    """Return how many bytes the readers of a warehouse have taken."""
    rows = SmallTable(uri=str(uri), table=TIER_QUOTAS).read()
    return sum(int(str(row["taken_bytes"])) for row in rows if row["broker_id"] == READERS)
