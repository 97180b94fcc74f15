"""Compute in which partition of the metadata topic a topic-partition's events are.

The rule is that of Kafka's RemoteLogMetadataTopicPartitioner: murmur2 over the four bytes of Objects.hash(lower 8 bytes
of the topic id, upper 8 bytes, partition), without its sign, modulo the number of partitions. A broker reads the events
of a topic-partition from this partition only.
"""

from __future__ import annotations

from coldlog.errors import UsageError
from coldlog.model.ids import TopicIdPartition, uuid_bytes

_INT32 = 0xFFFFFFFF
_SEED, _FACTOR = 0x9747B28C, 0x5BD1E995


def find_metadata_partition(partition: TopicIdPartition, partition_count: int) -> int:
    """Return the metadata partition, a number below `partition_count`."""
    if partition_count < 1:
        raise UsageError(f"a topic has at least one partition, not {partition_count}")
    topic_id = uuid_bytes(partition.topic_id)
    upper, lower = int.from_bytes(topic_id[:8], "big"), int.from_bytes(topic_id[8:], "big")
    hashed = 1
    for part in (lower ^ lower >> 32, upper ^ upper >> 32, partition.partition):
        hashed = (31 * hashed + part) & _INT32
    return (_murmur2_of_int(hashed) & 0x7FFFFFFF) % partition_count


def _murmur2_of_int(number: int) -> int:
    """Return MurmurHash2 of the four bytes in big-endian order; the hash itself reads them as little-endian."""
    mixed = int.from_bytes(number.to_bytes(4, "big"), "little") * _FACTOR & _INT32
    mixed = (mixed ^ mixed >> 24) * _FACTOR & _INT32
    hashed = ((_SEED ^ 4) * _FACTOR & _INT32) ^ mixed
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _INT32
    return hashed ^ hashed >> 15
