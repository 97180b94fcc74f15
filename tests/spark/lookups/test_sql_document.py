"""Run the examples of docs/how-to/ask-in-sql.md and compare their output; every function has one."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from coldlog.lookups.functions import FUNCTIONS, query_text
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp
from coldlog.sql import attach_warehouse
from coldlog.tables.delta.warehouse import Warehouse

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "ask-in-sql.md"
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shown_by(language: str, example: str, warehouse: Warehouse) -> str:
    """Return what an example prints; for SQL its rows."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        if language == "sql":
            warehouse.spark.sql(example).show(truncate=False)
        else:
            names = {"spark": warehouse.spark, "warehouse_uri": warehouse.uri, "attach_warehouse": attach_warehouse}
            exec(example, names)
    return printed.getvalue().strip()


def test_every_example_shows_its_real_output(golden: Warehouse) -> None:
    attach_warehouse(golden.spark, golden.uri)
    blocks = FENCED.findall(DOCUMENT.read_text(encoding="utf-8"))
    examples, shown = blocks[::2], blocks[1::2]
    assert [language for language, _ in shown] == ["text"] * len(examples)
    assert {language for language, _ in examples} == {"sql", "python"}
    for (language, example), (_, expected) in zip(examples, shown, strict=True):
        assert shown_by(language, example, golden) == expected.strip(), example
    assert len(examples) > 12


def section_of(function: str) -> str:
    """Return the text below the function's heading."""
    sections = re.split(r"^## ", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (section,) = [section for section in sections if section.startswith(f"{function}\n")]
    return section


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_has_an_example(function: str) -> None:
    examples = "".join(example for language, example in FENCED.findall(section_of(function)) if language == "sql")
    assert f"{function}(" in examples


def test_errors_and_special_timestamps_are_those_of_the_function() -> None:
    section, body = section_of("list_offsets"), query_text("list_offsets")
    documented = {(int(code), name) for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", section, re.MULTILINE)}
    assert documented == {
        (int(code), name) for name, code in re.findall(r"WHEN '(\w+)' THEN (\d+)$", body, re.MULTILINE)
    }
    assert all(ErrorCode(code).name == name for code, name in documented)
    special = re.findall(r"^\| (-\d) ([a-z ]+) \| (\d+) \|", section, re.MULTILINE)
    assert [(int(each), name, int(since)) for each, name, since in special] == [
        (each.value, each.name.lower().replace("_", " "), each.since_version) for each in SpecialTimestamp
    ]


def test_outcomes_are_those_of_the_function() -> None:
    documented = re.findall(r"^\| `([A-Z_]+)` \|", section_of("offset_for_timestamp"), re.MULTILINE)
    body = query_text("offset_for_timestamp").partition("\nRETURN\n")[2]
    assert set(documented) == set(re.findall(r"'([A-Z]\w+)'", body))
    assert len(documented) == 5
