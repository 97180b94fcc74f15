"""Make the table of docs/reference/versions.md: by capability and version, how many answers were compared and equal."""

from __future__ import annotations

from collections.abc import Mapping

from cluster_comparison import Compared
from servers.kafka_clusters import CLUSTER_NAMES, follower_entries


def versions_table(comparisons: Mapping[str, Compared]) -> str:
    """In Markdown, a column a cluster."""
    rows = [["", *CLUSTER_NAMES], ["---"] * (len(CLUSTER_NAMES) + 1)]
    rows += [[capability, *map(compared.cell, CLUSTER_NAMES)] for capability, compared in comparisons.items()]
    rows.append(["index entries of whole fetched sets", *(str(follower_entries(each)) for each in CLUSTER_NAMES)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
