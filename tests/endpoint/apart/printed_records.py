"""printed_records: run clients that are programs of their own, and read what they print, a line of JSON each."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from broker.tiered_broker import KAFKA_VERSION, broker_jars
from contents.record_rows import Row
from endpoint.support.truth import Header, Place, as_row
from servers.kafka_jars import find_tool, run_tool

_HERE = Path(__file__).parent


def build_franz_reader(folder: Path) -> Path:
    """Build the program into a folder; Go keeps what it has fetched and compiled for the next time."""
    go = shutil.which("go")
    if go is None:
        pytest.fail("Go 1.26 or newer is needed to build the reader with franz-go; set PATH")
    run_tool([go, "build", "-C", str(_HERE / "franz_reader"), "-o", str(folder / "franz_reader"), "."])
    return folder / "franz_reader"


def run_java(*arguments: str) -> str:
    """Run ReadPartitions.java."""
    java = [find_tool("java"), "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{broker_jars(KAFKA_VERSION)}/*"]
    return run_tool([*java, str(_HERE / "ReadPartitions.java"), *arguments])


def named(places: Iterable[Place]) -> list[str]:
    """Partitions as such programs take them."""
    return [f"{topic}:{partition}" for topic, partition in places]


def printed_records(lines: str, places: Sequence[Place]) -> dict[Place, list[Row]]:
    """The records in what a program printed, by partition."""
    found: dict[Place, list[Row]] = {place: [] for place in places}
    for record in map(json.loads, lines.splitlines()):
        headers: list[Header] = [(str(each["name"]), _content(each["value"])) for each in record["headers"]]
        key, value = _content(record["key"]), _content(record["value"])
        row = as_row(record["offset"], record["timestamp_ms"], key, value, headers)
        found[record["topic"], record["partition"]].append(row)
    return found


def printed_offsets(lines: str) -> Mapping[Place, int | None]:
    """Offsets at times."""
    return {(each["topic"], each["partition"]): each["offset"] for each in map(json.loads, lines.splitlines())}


def _content(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
