"""Answer DescribeLogDirs: the archived bytes of each partition, which tools show as the size of a topic.

There is one directory, `archive`, of which neither the total nor the free bytes are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kio.schema.errors import ErrorCode

from coldlog.serve.answer_writer import Values
from coldlog.serve.context import Context
from coldlog.serve.messages import Request

_DIRECTORY = "archive"
_UNKNOWN = -1


async def answer_describe_log_dirs(context: Context, request: Request) -> Values:
    """The named partitions, or all; those that do not exist or that the client may not see are left out."""
    asked = request.body.topics

    def describe() -> list[Values]:
        wanted: list[tuple[str, Sequence[int]]]
        if asked is None:
            wanted = [(name, range(count)) for name, count in sorted(context.view.topics().items())]
        else:
            wanted = [(each.topic, each.partitions) for each in asked]
        return [
            {"name": name, "partitions": list(_partitions(context, name, numbers))}
            for name, numbers in wanted
            if name in request.rights.topics
        ]

    found = await context.find(describe)
    error = ErrorCode.request_timed_out if found is None else ErrorCode.none
    topics = [each for each in found or () if each["partitions"]]
    directory = {
        "error_code": error,
        "log_dir": _DIRECTORY,
        "topics": topics,
        "total_bytes": _UNKNOWN,
        "usable_bytes": _UNKNOWN,
    }
    return {"error_code": error, "results": [directory]}


def _partitions(context: Context, name: str, numbers: Sequence[int]) -> Iterator[Values]:
    for number in numbers:
        served = context.view.partition(name, number)
        if served is not None:
            yield {
                "partition_index": number,
                "partition_size": served.size_bytes,
                "offset_lag": 0,
                "is_future_key": False,
            }
