"""committed: what has a group committed at the endpoint?"""

from __future__ import annotations

from collections.abc import Iterable

import confluent_kafka

from endpoint.support.truth import Place


def committed_offsets(address: str, group: str, places: Iterable[Place]) -> dict[Place, int]:
    """The committed offsets of a group, which is not joined; -1001 where there is none."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": group})
    asked = [confluent_kafka.TopicPartition(*place) for place in places]
    found = {(each.topic, each.partition): each.offset for each in consumer.committed(asked, timeout=60)}
    consumer.close()
    return found
