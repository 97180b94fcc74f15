"""The generated pages of docs/reference are what the code makes; the columns they name are those that Spark knows."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
from docs.reference import FOLDER, PAGES, TABLES, page_text
from pyspark.sql import SparkSession

from changed_library import REPOSITORY, changed_library
from coldlog.lookups.functions import FUNCTIONS, VIEWS
from coldlog.sql import attach_warehouse
from coldlog.tables.delta.warehouse import Warehouse

ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|", re.MULTILINE)


def section_of(page: str, heading: str) -> str:
    """What is below a heading of a page."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page_text(page), re.MULTILINE | re.DOTALL)
    return str(section)


@pytest.fixture(scope="module")
def attached(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session with the names of a warehouse without rows, whose columns are those of any other."""
    warehouse = Warehouse(spark=spark, uri=str(tmp_path_factory.mktemp("attached") / "warehouse"))
    warehouse.create_missing()
    attach_warehouse(spark, warehouse.uri)
    return spark


@pytest.mark.parametrize("page", PAGES)
def test_committed_page_is_what_the_code_makes(page: str) -> None:
    committed = (FOLDER / page).read_text(encoding="utf-8")
    assert committed == page_text(page), (
        f"docs/reference/{page} is not up to date: run `make reference`, then commit it"
    )


@pytest.mark.parametrize("function", FUNCTIONS)
def test_arguments_and_columns_of_a_function_are_those_that_spark_knows(attached: SparkSession, function: str) -> None:
    arguments, columns = section_of("sql-functions.md", function).split("| column | type | meaning |")
    values = ", ".join(f"{name} => CAST(NULL AS {type_})" for name, type_ in ROW.findall(arguments))
    answer = attached.sql(f"SELECT * FROM {function}({values})")
    assert ROW.findall(columns) == [(name, type_.upper()) for name, type_ in answer.dtypes]


def test_columns_of_tables_and_views_are_those_that_spark_knows(attached: SparkSession) -> None:
    kept = {row.tableName for row in attached.sql("SHOW TABLES IN coldlog").collect()}
    assert kept >= {*VIEWS, "segments", "time_index"}
    for name in {*VIEWS, *(table.name for table in TABLES)} & kept:
        told = re.findall(r"^\| `(\w+)` \|", section_of("tables.md", name), re.MULTILINE)
        assert told == attached.table(f"coldlog.{name}").columns, name


def test_an_added_setting_and_job_are_in_the_pages(tmp_path: Path) -> None:
    setting = '\n    patience_ms: int = setting(250, "time limit for patience", at_least=1)\n'
    group = '    """What is listed, and when a listing is accepted."""'
    job = (REPOSITORY / "jobs" / "build_indexes.py").read_text(encoding="utf-8")
    with changed_library(
        tmp_path,
        files={"jobs/count_segments.py": job.replace("Read the pending segments", "Count the pending segments")},
        lines=[("lib/coldlog/runtime/settings.py", group, setting)],
    ):
        pages = import_module("docs.reference")
        settings, jobs = pages.page_text("settings.md"), pages.page_text("jobs.md")
    assert "| `scan.patience_ms` | `250` | a whole number from 1 | time limit for patience |" in settings
    assert "## count_segments\n\nCount the pending segments and fill the index tables." in jobs
