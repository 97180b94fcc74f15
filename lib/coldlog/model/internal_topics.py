"""Name the topics that brokers keep for themselves.

Their partitions are in log directories beside all others. As for Kafka's consumer, no pattern matches them. They are
not copied.
"""

from __future__ import annotations

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""Those of Kafka's Topic.isInternal, and the controllers' log: it is in the first of log.dirs if metadata.log.dir is
not set."""
