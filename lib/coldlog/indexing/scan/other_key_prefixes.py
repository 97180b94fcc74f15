"""other_key_prefixes: below which key prefixes do segments lie that the Aiven layout was not told of?

When `key.prefix` of the plugin was changed, finished segments are not listed any more below the new one. The plugin may
have noted the prefix of each in the metadata topic (`formats.aiven_custom_metadata`): then it can be said which one
`archive.key_prefix` lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pyspark.sql import functions as F

from coldlog.archive.layouts.aiven_layout import AivenLayout
from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.errors import ArchiveError
from coldlog.formats.aiven.custom_metadata import read_aiven_custom_metadata
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse

_LOOKED_AT = 10_000


def find_other_key_prefixes(warehouse: Warehouse, layout: ArchiveLayout) -> Mapping[str, int]:
    """Prefixes that the layout does not know and how many of the finished segments that were not listed name each; of
    many segments some are looked at."""
    if not isinstance(layout, AivenLayout):
        return {}
    is_finished = F.col("state") == RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name
    is_lost = is_finished & ~F.col("is_listed") & F.col("custom_metadata").isNotNull()
    lost = warehouse.read(SEGMENTS).where(is_lost).select("custom_metadata").limit(_LOOKED_AT)
    return count_other_prefixes((bytes(row["custom_metadata"]) for row in lost.collect()), layout.key_prefixes)


def count_other_prefixes(noted: Iterable[bytes], known: tuple[str, ...]) -> Mapping[str, int]:
    """How often each prefix is noted that is not known; custom metadata that is not the plugin's says nothing."""
    counts: Counter[str] = Counter()
    for content in noted:
        try:
            prefix = read_aiven_custom_metadata(content).object_prefix
        except ArchiveError:
            continue
        if prefix is not None and prefix not in known:
            counts[prefix] += 1
    return counts
