"""consume: how long does one client take to read partitions from a broker, from their first record on?

    consume.py ADDRESS TOPIC PARTITION:END [PARTITION:END ...]

librdkafka reads each partition up to the offset END. The clock starts at the first line on standard input, when the
client has its connection and metadata. Prints the bytes of the values and the seconds as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

_SILENCE_S, _WAIT_S = 60.0, 0.05


def main(arguments: Sequence[str]) -> None:
    """Read and print."""
    address, topic, *places = arguments
    left = {int(partition): int(end) for partition, _, end in (place.partition(":") for place in places)}
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "benchmark", "enable.auto.commit": False, "check.crcs": False}
    )
    consumer.list_topics(topic, timeout=_SILENCE_S)
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.perf_counter()
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
    read_bytes, heard = 0, started
    while left:
        # It waits for all of them, and the last ones are fewer.
        messages = consumer.consume(1_000, timeout=_WAIT_S)
        if messages:
            heard = time.perf_counter()
        elif time.perf_counter() - heard > _SILENCE_S:
            raise SystemExit(f"no record of {topic} for {_SILENCE_S:g} s; {left} are left")
        for message in messages:
            if (error := message.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            read_bytes += len(message)
        last = {message.partition(): message.offset() for message in messages}
        left = {partition: end for partition, end in left.items() if (last.get(partition) or 0) + 1 < end}
    print(json.dumps({"bytes": read_bytes, "seconds": time.perf_counter() - started}))
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
