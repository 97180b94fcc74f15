"""Test that docs/kips.md names tests, settings, metrics, columns and error codes that exist, and gives each row a proof
or a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs.links import REPOSITORY

from coldlog.model.fetch import FetchErrorCode
from coldlog.model.list_offsets import ErrorCode
from coldlog.runtime.settings_sources import list_setting_keys
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.tier.tier_partitions import TIER_PARTITIONS
from coldlog.tables.definitions.tier.tier_schedule import TIER_SCHEDULE

_ROW = re.compile(
    r"\| (?P<kip>.+?) \| (?P<state>yes|partial|missing|not here) \| (?P<where>.*?) \| ?(?P<tests>.*?) ?\|"
)
_NOT_OF_COLDLOG = re.compile(r"\((?:in Kafka|Kafka has) .*?\)")
_SPAN = re.compile(r"`([^`]+)`")
PAGE = (REPOSITORY / "docs" / "kips.md").read_text(encoding="utf-8")
ROWS = [found for line in PAGE.splitlines() if (found := _ROW.fullmatch(line))]
SETTINGS = {each.key: each.default for each in list_setting_keys()}
COLUMNS = {
    definition.name: {column.name for column in definition.columns}
    for definition in (*ALL_TABLES, TIER_PARTITIONS, TIER_SCHEDULE)
}


def spans(text: str) -> list[str]:
    """What is written as code, without what is said of Kafka alone."""
    return _SPAN.findall(_NOT_OF_COLDLOG.sub("", text))


def words_of(folder: Path, pattern: str) -> set[str]:
    return {word for file in folder.rglob("*.py") for word in re.findall(pattern, file.read_text(encoding="utf-8"))}


@pytest.fixture(scope="module")
def known_tests() -> set[str]:
    return words_of(REPOSITORY / "tests", r"def (test_\w+)\(")


def test_each_row_is_read_and_has_a_test_or_a_reason() -> None:
    _, _, parts = PAGE.partition("\n## ")
    lines = [line for line in parts.splitlines() if re.match(r"\| (?!.* \| state \| where \|)", line)]
    assert [row[0] for row in ROWS] == lines
    assert len(lines) > 100
    for row in ROWS:
        assert row["where"], row[0]
        is_shown = row["state"] in ("yes", "partial")
        assert bool(spans(row["tests"])) == is_shown, row[0]
        assert re.sub(r"`test_\w+`(, )?", "", row["tests"]) == "", row[0]


@pytest.mark.parametrize("kip", ["405", "1075", "1058", "956", "695"])
def test_each_kip_has_a_part(kip: str) -> None:
    assert re.search(rf"^## KIP-{kip}: ", PAGE, re.MULTILINE)


def test_tests_exist(known_tests: set[str]) -> None:
    named = {name for row in ROWS for name in spans(row["tests"])}
    assert sorted(named - known_tests) == []


def test_settings_exist_and_what_is_missing_does_not() -> None:
    kafkas = {span for row in ROWS for span in spans(row["kip"]) if re.fullmatch(r"remote\.[a-z.]+", span)}
    missing = {span for row in ROWS if row["state"] == "missing" for span in spans(row["kip"])}
    assert sorted((kafkas - SETTINGS.keys()) ^ (kafkas & missing)) == []
    dotted = {span for row in ROWS for span in spans(row["where"]) if re.fullmatch(r"[a-z_]+(?:\.[a-z_]+)+", span)}
    of_others = {span for span in dotted if span.startswith("coldlog.")}
    assert sorted(dotted - of_others - SETTINGS.keys()) == []
    for row in ROWS:
        for key, default in re.findall(r"`(remote\.[a-z.]+)` \((\d+)[;)]", row["kip"]):
            assert SETTINGS[key] == int(default), key


def test_metrics_exist() -> None:
    named = {span for row in ROWS for span in spans(row["where"]) if span.startswith("coldlog_serve_")}
    known = words_of(REPOSITORY / "lib" / "coldlog" / "serve", r"\"([a-z_]+)\"")
    assert len(named) > 5
    assert sorted(name for name in named if name.removeprefix("coldlog_serve_") not in known) == []


def test_error_codes_have_their_numbers() -> None:
    codes = {each.name: each.value for each in FetchErrorCode} | {each.name: each.value for each in ErrorCode}
    named = {name for row in ROWS for name in spans(row["where"]) if re.fullmatch(r"[A-Z]+(?:_[A-Z]+)+", name)}
    assert sorted(named - codes.keys()) == []
    for row in ROWS:
        for name, number in re.findall(r"`([A-Z_]+)` \((-?\d+)\)", row["where"]):
            assert codes[name] == int(number)


def test_columns_are_those_of_the_table_named_after_them() -> None:
    named = [
        (column, table)
        for row in ROWS
        for columns, table in re.findall(r"((?:`\w+`(?:, | and )?)+) of `coldlog\.(\w+)`", row["where"])
        for column in spans(columns)
    ]
    assert len(named) > 4
    assert [(column, table) for column, table in named if column not in COLUMNS[table]] == []
