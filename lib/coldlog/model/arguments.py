"""Check the arguments of calls that name a partition and numbers of it.

Texts are UTF-8 and numbers have Kafka's widths (int32, int64), because tables and requests hold no others. A bool is no
number. Anything else is a `UsageError`.
"""

from __future__ import annotations

from operator import index

from coldlog.errors import UsageError


def check_partition(topic: object, partition: object) -> int:
    """Return the partition as an int; raise `UsageError` unless both may name a partition."""
    check_topic(topic)
    return whole_number("partition", partition, -(2**31), 2**31)


def check_topic(topic: object) -> None:
    """Raise `UsageError` unless this is a text that can be written as UTF-8."""
    if not isinstance(topic, str):
        raise UsageError(f"not the name of a topic: {topic!r}")
    try:
        topic.encode()
    except UnicodeEncodeError as not_utf8:
        raise UsageError(f"not the name of a topic: {topic!r}: not UTF-8") from not_utf8


def whole_number(name: str, value: object, least: int, limit: int) -> int:
    """Return the value as an int from `least` to below `limit`."""
    try:
        if isinstance(value, bool):
            raise TypeError("a bool")
        number = index(value)  # type: ignore[arg-type]  # a TypeError is what is asked for
    except TypeError as unfit:
        raise UsageError(f"{name} is {value!r}: expected a whole number") from unfit
    if not least <= number < limit:
        raise UsageError(f"{name} is {number}: expected {least} to {limit - 1}")
    return number
