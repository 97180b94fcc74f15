"""truth: what must a client get of the sample's archive?"""

from __future__ import annotations

import base64
import zlib
from collections import defaultdict
from collections.abc import Sequence
from functools import cache

from contents.record_rows import Row, consumed, true_batches
from worlds.golden_warehouse import golden_partitions, golden_queries

Place = tuple[str, int]
Header = tuple[str, bytes | None]
PLACES: list[Place] = [
    (str(row["topic"]), int(str(row["partition"]))) for row in golden_partitions() if int(str(row["archive_end"])) >= 0
]
LEVELS = ("read_uncommitted", "read_committed")


@cache
def log_start(place: Place) -> int:
    """Where the broker's log began."""
    (row,) = (row for row in golden_partitions() if (row["topic"], row["partition"]) == place)
    return int(str(row["log_start"]))


@cache
def end_offset(place: Place, level: str) -> int:
    """The end of the archive, or the first offset of the oldest transaction without a marker in it."""
    batches = sorted(true_batches(*place), key=lambda batch: int(batch["base"]))
    first_open: dict[int, int] = {}
    for batch in batches if level == "read_committed" else ():
        if batch["control"]:
            first_open.pop(batch["pid"], None)
        elif batch["txn"]:
            first_open.setdefault(batch["pid"], batch["base"])
    return min([int(batches[-1]["last"]) + 1, *first_open.values()])


def true_records(place: Place, level: str) -> list[Row]:
    """The records that a broker's consumer got up to the end of the archive, in the form of `as_row`."""
    end = end_offset(place, level)
    records = [row for row in consumed(*place) if row["o"] < end and (row["rc"] or level == "read_uncommitted")]
    return [
        {
            "o": row["o"],
            "ts": row["ts"],
            "k": _short(row["k"]),
            "v": _short(row["v"]),
            "h": [(name, value) for name, value in row.get("h", [])],
        }
        for row in records
    ]


@cache
def true_times(rounds: int = 4) -> list[dict[Place, tuple[int, int | None]]]:
    """Questions for offsets by time, each place once a round: the time, and what a scan of the archive gives."""
    queries: dict[object, list[Row]] = defaultdict(list)
    for each in golden_queries():
        queries[each["topic"], each["partition"]].append(each)
    asked: list[dict[Place, tuple[int, int | None]]] = [{} for _ in range(rounds)]
    for place in PLACES:
        own = queries[place]
        for number in range(rounds):
            query = own[number * (len(own) - 1) // (rounds - 1)]
            found = query["scan"] if "scan" in query else query["ru"] if query["archive"] else {}
            asked[number][place] = int(query["ts"]), found.get("offset")
    return asked


def as_row(offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> Row:
    """A client's record."""
    return {
        "o": offset,
        "ts": timestamp_ms,
        "k": _digest(key),
        "v": _digest(value),
        "h": [(name, None if content is None else base64.b64encode(content).decode()) for name, content in headers],
    }


def _short(content: object) -> object:
    if content is None:
        return None
    if isinstance(content, dict):
        return content["len"], content["crc32"]
    return _digest(base64.b64decode(str(content)))


def _digest(content: bytes | None) -> object:
    return None if content is None else (len(content), zlib.crc32(content))
