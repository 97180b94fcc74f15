"""Find key prefixes of the Aiven plugin that `archive.key_prefix` does not have.

After a change of the plugin's `key.prefix`, earlier segments are not below the new prefix. The plugin may have recorded
each segment's prefix in the metadata topic (`formats.aiven.custom_metadata`). That shows which prefixes are missing in
`archive.key_prefix`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pyspark.sql import functions as F

from coldlog.archive.inventory.reported_layout import ReportedLayout
from coldlog.archive.layouts.aiven_layout import AivenLayout
from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.errors import ArchiveError
from coldlog.formats.aiven.custom_metadata import read_aiven_custom_metadata
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse

_LOOKED_AT = 10_000


def find_other_key_prefixes(warehouse: Warehouse, layout: ArchiveLayout) -> Mapping[str, int]:
    """Count, by prefix that the layout does not know, finished segments that were not listed; of many, a sample."""
    if isinstance(layout, ReportedLayout):
        layout = layout.layout
    if not isinstance(layout, AivenLayout):
        return {}
    finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name
    rows = warehouse.rows_if_small(SEGMENTS, ("state", "is_listed", "custom_metadata"))
    if rows is not None:
        lost_here = (row["custom_metadata"] for row in rows if row["state"] == finished and not row["is_listed"])
        return count_other_prefixes((each for each in lost_here if each is not None), layout.key_prefixes)
    is_finished = F.col("state") == finished
    is_lost = is_finished & ~F.col("is_listed") & F.col("custom_metadata").isNotNull()
    lost = warehouse.read(SEGMENTS).where(is_lost).select("custom_metadata").limit(_LOOKED_AT)
    return count_other_prefixes((bytes(row["custom_metadata"]) for row in lost.collect()), layout.key_prefixes)


def count_other_prefixes(custom_metadata: Iterable[bytes], known: tuple[str, ...]) -> Mapping[str, int]:
    """Count each recorded prefix that is not known; custom metadata of other plugins is ignored."""
    counts: Counter[str] = Counter()
    for content in custom_metadata:
        try:
            prefix = read_aiven_custom_metadata(content).object_prefix
        except ArchiveError:
            continue
        if prefix is not None and prefix not in known:
            counts[prefix] += 1
    return counts
