"""Run the examples of the pages about records, compare their output, and look for every option."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

from coldlog.records.source.columns import COLUMN_TYPES
from coldlog.records.source.options import FOR_RECORDS
from coldlog.tables.delta.warehouse import Warehouse

GUIDES = Path(__file__).parents[3] / "docs" / "how-to"
PAGES = ("read-records.md", "fetch-records.md", "replay-topics.md")
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_example_shows_its_real_output(golden: Warehouse, golden_archive: Path) -> None:
    text = "\n".join((GUIDES / page).read_text(encoding="utf-8") for page in PAGES)
    (_, first), *blocks = FENCED.findall(text)
    names = {"spark": golden.spark, "warehouse_uri": golden.uri, "archive_uri": str(golden_archive)}
    exec(first, names)
    examples, shown = blocks[::2], blocks[1::2]
    assert [language for language, _ in shown] == ["text"] * len(examples)
    for (_, example), (_, expected) in zip(examples, shown, strict=True):
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(example, names)
        assert printed.getvalue().strip() == expected.strip(), example
    assert len(examples) == 8


def test_every_option_and_column_is_named() -> None:
    named = {
        each.lower() for each in re.findall(r"`([\w.]+)`", (GUIDES / "read-records.md").read_text(encoding="utf-8"))
    }
    assert named >= {*FOR_RECORDS, "kafka.isolation.level", *(each.lower() for each in COLUMN_TYPES)}
