"""client_table: which functions of which client were seen to work? docs/reference/clients.md has what tests say.

A test that shows that a client works is marked `shows(client, function)`, and a third word if the answer is not "yes".
Names in braces stand for parameters of the test: `shows("{client}", "{level}")`. `make clients` runs all of them and
writes the page; with ARGUMENTS that choose some, the rows of these clients. Tests in the folder `apart` run only there.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from broker.tiered_broker import KAFKA_VERSION

COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""Every test of this folder that was found, also those that do not run."""
_HERE = Path(__file__).parents[1]
_PAGE = _HERE.parents[1] / "docs" / "reference" / "clients.md"
_APART = _HERE / "apart"
_FUNCTIONS = {
    "topics": "topics",
    "read_uncommitted": "read_uncommitted",
    "read_committed": "read_committed",
    "times": "offsets by time",
    "groups": "groups",
    "gaps": "gaps",
    "users": "TLS and users",
}
"""Columns of the table, with their headings."""
Cells = dict[tuple[str, str], str]
"""By client and function; the function `version` is the client's version."""
_FAILS = "fails"


def _package(name: str) -> Callable[[], str]:
    return lambda: importlib.metadata.version(name)


def _franz_go_version() -> str:
    found = re.search(r"twmb/franz-go (v\S+)", (_APART / "franz_reader" / "go.mod").read_text(encoding="utf-8"))
    assert found is not None
    return found[1].removeprefix("v")


def _kcat_version() -> str:
    if shutil.which("kcat") is None:
        return "not installed"
    said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Version (\S+) .*librdkafka (\S+)", said)
    assert found is not None
    return f"{found[1]}, librdkafka {found[2]}"


def _flink_version() -> str:
    found = re.findall(r"<(?:flink|connector).version>(.+)</", (_APART / "flink_reader" / "pom.xml").read_text("utf-8"))
    return "{}, connector {}".format(*found)


def _spark_version() -> str:
    return importlib.metadata.version("pyspark")


_CLIENTS: dict[str, tuple[str, Callable[[], str]]] = {
    "librdkafka": ("librdkafka (confluent-kafka)", _package("confluent-kafka")),
    "kafka-python": ("kafka-python", _package("kafka-python")),
    "aiokafka": ("aiokafka", _package("aiokafka")),
    "franz-go": ("franz-go", _franz_go_version),
    "kcat": ("kcat", _kcat_version),
    "java": ("Java consumer", lambda: KAFKA_VERSION),
    "console-consumer": ("kafka-console-consumer.sh", lambda: KAFKA_VERSION),
    "get-offsets": ("kafka-get-offsets.sh", lambda: KAFKA_VERSION),
    "consumer-groups": ("kafka-consumer-groups.sh", lambda: KAFKA_VERSION),
    "topics": ("kafka-topics.sh", lambda: KAFKA_VERSION),
    "spark-batch": ("Spark's Kafka source, batch", _spark_version),
    "spark-stream": ("Spark's Kafka source, stream", _spark_version),
    "flink": ("Flink's Kafka source", _flink_version),
    "mirror-maker": ("MirrorMaker 2", lambda: KAFKA_VERSION),
}
"""Rows of the table: each client's name and version."""


def shown_cells(items: Iterable[pytest.Item], failed: Collection[str] = ()) -> Cells:
    """What these tests show if those with these ids fail; `*` where every test of it is apart."""
    said, apart = Cells(), Cells()
    for item in items:
        for client, function, how in _marks(item):
            cells = apart if is_apart(item) else said
            if cells.get((client, function)) != _FAILS:
                cells[client, function] = _FAILS if item.nodeid in failed else how
    return {cell: f"{text}*" for cell, text in apart.items() if text == _FAILS or cell not in said} | said


def _marks(item: pytest.Item) -> Iterator[tuple[str, str, str]]:
    """Client, function and how it works, of each mark of a test."""
    given = getattr(item, "callspec", None)
    for mark in item.iter_markers("shows"):
        client, function, *how = (str(each).format(**(given.params if given else {})) for each in mark.args)
        assert client in _CLIENTS, f"{item.nodeid}: {client}"
        assert function in _FUNCTIONS, f"{item.nodeid}: {function}"
        yield client, function, how[0] if how else "yes"


def are_all(items: Iterable[pytest.Item]) -> bool:
    """Whether these are the tests of all files."""
    return {each.path for each in items} >= set(_HERE.rglob("test_*.py"))


def is_apart(item: pytest.Item) -> bool:
    """Whether only `make clients` runs a test."""
    return item.path.is_relative_to(_APART)


def versions(clients: Iterable[str]) -> Cells:
    """The versions of clients, as they are installed."""
    return {(client, "version"): _CLIENTS[client][1]() for client in clients}


def write_page(collected: Iterable[pytest.Item], outcomes: Mapping[str, bool]) -> None:
    """Write the rows of the clients whose tests all ran; outcomes say which tests passed. All else stays."""
    items = list(collected)
    left = {client for each in items if each.nodeid not in outcomes for client, *_ in _marks(each)}
    shown = shown_cells(items, {name for name, has_passed in outcomes.items() if not has_passed})
    shown = {cell: text for cell, text in shown.items() if cell[0] not in left}
    kept = {cell: text for cell, text in read_page().items() if cell[0] in left}
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition("| client |")
    table = _table(kept | shown | versions(client for client, _ in shown))
    _PAGE.write_text(f"{before}{table}\n{rest.partition(chr(10) * 2)[2]}", encoding="utf-8")


def _table(cells: Mapping[tuple[str, str], str]) -> str:
    rows = [["client", "version", *_FUNCTIONS.values()], ["---"] * (len(_FUNCTIONS) + 2)]
    for client, (name, _) in _CLIENTS.items():
        row = [cells.get((client, function), "") for function in ("version", *_FUNCTIONS)]
        if any(row):
            rows.append([name, *row])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def read_page() -> Cells:
    """The cells of the page's table."""
    names = {name: client for client, (name, _) in _CLIENTS.items()}
    found = Cells()
    for line in _PAGE.read_text(encoding="utf-8").splitlines():
        name, *row = [part.strip() for part in line.strip("|").split(" | ")]
        if name in names:
            for function, text in zip(("version", *_FUNCTIONS), row, strict=True):
                if text:
                    found[names[name], function] = text
    return found
