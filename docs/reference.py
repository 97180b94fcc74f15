"""Write the generated pages of docs/reference from the code.

    .venv/bin/python docs/reference.py      (or: make reference)

A page is a function of the code alone: settings from their declarations, jobs from their argument parsers, tables from
their definitions, SQL functions and views from the comments in their SQL. A test compares the committed pages with what
this program makes.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NoReturn
from unittest.mock import patch

from coldlog.errors import Reason
from coldlog.launch import entry_point
from coldlog.launch.submit import list_jobs
from coldlog.lookups.functions import FUNCTIONS, VIEWS, query_text
from coldlog.model.fetch import FetchErrorCode
from coldlog.model.list_offsets import ErrorCode
from coldlog.runtime.argument_parser import EXIT_USAGE
from coldlog.runtime.installation import ROOT
from coldlog.runtime.settings import SETTING_GROUPS
from coldlog.runtime.settings_sources import SettingKey, list_setting_keys
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.committed_offsets import COMMITTED_OFFSETS
from coldlog.tables.definitions.damage_reports import DAMAGE_REPORTS
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.directory_digests import DIRECTORY_DIGESTS
from coldlog.tables.definitions.discrepancies import DiscrepancyKind
from coldlog.tables.definitions.metadata_positions import METADATA_POSITIONS
from coldlog.tables.definitions.replay_positions import REPLAY_POSITIONS
from coldlog.tables.definitions.tier.tier_partitions import TIER_PARTITIONS
from coldlog.tables.definitions.tier.tier_quotas import TIER_QUOTAS
from coldlog.tables.definitions.tier.tier_schedule import TIER_SCHEDULE

FOLDER = ROOT / "docs" / "reference"
TABLES: tuple[TableDefinition, ...] = (
    *ALL_TABLES,
    TIER_SCHEDULE,
    TIER_PARTITIONS,
    TIER_QUOTAS,
    REPLAY_POSITIONS,
    COMMITTED_OFFSETS,
    DAMAGE_REPORTS,
    DIRECTORY_DIGESTS,
    METADATA_POSITIONS,
)
"""Those that every warehouse has, then those that a job makes when it needs them."""
EXIT_CODES: Mapping[int, str] = {
    0: "The job is done.",
    entry_point.EXIT_FAILED: "The job failed, or it found what it must fail for (`reconcile_archive --fail-on`, "
    "critical expectations of `validate_tables`, too many quarantined segments). The message says what to do.",
    EXIT_USAGE: "The command is wrong: an argument, a setting, a request or a missing table.",
    entry_point.EXIT_INTERRUPTED: "The job was stopped by Ctrl-C (SIGINT).",
    entry_point.EXIT_TERMINATED: "The job was stopped by SIGTERM.",
}
_COMMENT = r"COMMENT '((?:[^']|'')*)'"
_COLUMN = re.compile(r"^  (\w+)(?: ([A-Z]+))?(?: DEFAULT (\S+))? " + _COMMENT, re.MULTILINE)


def main() -> int:
    """Write every page."""
    for name in PAGES:
        (FOLDER / name).write_text(page_text(name), encoding="utf-8")
    return 0


def page_text(name: str) -> str:
    """A generated page, by the name of its file."""
    return "\n".join(PAGES[name]()) + "\n"


def _settings_page() -> Iterator[str]:
    yield from _heading("Settings", "`lib/coldlog/runtime/settings.py`")
    yield (
        "The value of a setting comes from `conf/base.toml`, then `conf/<env>.toml` (`--env`, default `local`), your "
        "file (`--config FILE` or the variable `COLDLOG_CONFIG`), the variable with its name, such as "
        "`COLDLOG_ARCHIVE__URI` for `archive.uri`, then `--set key=value`; the last one counts."
    )
    yield (
        "`./spark-submit.sh show_settings` prints the values in force and where each comes from. Keys that begin with "
        "`spark.` go to Spark. Credentials are refused; they belong in the environment."
    )
    keys = list_setting_keys()
    fields = {group: len(dataclasses.fields(group_class)) for group, group_class in SETTING_GROUPS.items()}
    for group, count in fields.items():
        yield from ("", f"## {group}", "", _first_sentence(SETTING_GROUPS[group].__doc__), "")
        yield from _table(("key", "default", "allowed", "meaning"), map(_setting_row, keys[:count]))
        keys = keys[count:]


def _setting_row(key: SettingKey) -> tuple[str, ...]:
    if key.key == "cluster.python":
        default = "`python` of the driver's version"
    elif key.default is None:
        default = ""
    else:
        default = f"`{str(key.default).lower() if isinstance(key.default, bool) else key.default}`"
    return f"`{key.key}`", default, key.allowed, key.meaning


def _jobs_page() -> Iterator[str]:
    yield from _heading("Jobs", "`jobs/`")
    yield "`./spark-submit.sh JOB [arguments]` runs a job. Without JOB it lists the jobs."
    yield (
        "The environment variable MASTER (default `local[*]`) names the cluster, SPARK_DRIVER_MEMORY sets the driver's "
        "memory, and PYTHON names the interpreter that installs. Every job takes these options:"
    )
    yield ""
    common = argparse.ArgumentParser(add_help=False)
    entry_point.add_common_options(common)
    yield from _table(("option", "meaning"), _option_rows(common))
    yield ""
    yield "Exit codes are in [Exit codes and error codes](codes.md). Keys for `--set` are in [Settings](settings.md)."
    for name in list_jobs(ROOT / "jobs"):
        parser = _parser_of(name)
        yield from ("", f"## {name}", "")
        yield from _linked(parser.description or "").splitlines()
        rows = [row for row in _option_rows(parser) if row not in _option_rows(common)]
        if rows:
            yield ""
            yield from _table(("option", "meaning"), rows)


def _linked(description: str) -> str:
    """Pages that a job names are links here."""
    return re.sub(r"docs/([\w/-]+\.md)", r"[\1](../\1)", description)


class _ParsingError(Exception):
    """Carries the parser of a job out of the job."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def _stop(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
    raise _ParsingError(parser)


def _parser_of(job: str) -> argparse.ArgumentParser:
    """The argument parser of a job: its program runs up to the place where it parses."""
    with patch.object(argparse.ArgumentParser, "parse_args", _stop):
        try:
            runpy.run_path(str(ROOT / "jobs" / f"{job}.py"), run_name="__main__")
        except _ParsingError as stopped:
            return stopped.parser
    raise AssertionError(f"jobs/{job}.py does not parse its arguments")


def _option_rows(parser: argparse.ArgumentParser) -> list[tuple[str, ...]]:
    return [
        (
            " ".join(["`" + ", ".join(action.option_strings), *_operands(action)]) + "`",
            (action.help or "") % vars(action),
        )
        for action in parser._actions
        if action.option_strings and "--help" not in action.option_strings
    ]


def _operands(action: argparse.Action) -> list[str]:
    """What follows the option on the command line."""
    if action.nargs == 0:
        return []
    if action.choices is not None:
        return ["{" + ",".join(map(str, action.choices)) + "}"]
    return [str(action.metavar or action.dest.upper())]


def _tables_page() -> Iterator[str]:
    yield from _heading("Tables and views", "`lib/coldlog/tables/definitions` and `lib/coldlog/lookups/sql`")
    yield (
        "A warehouse is a folder with one Delta table for each name below. In SQL a table is `coldlog.<name>`, and "
        "`DESCRIBE coldlog.segments` shows the meanings too. delta-rs, DuckDB and pandas read the tables. Times are "
        "milliseconds since 1970 (UTC)."
    )
    late = _names(table.name for table in TABLES if table not in ALL_TABLES)
    yield from ("", f"A new warehouse does not have these tables; a job makes them when it needs them: {late}.")
    for table in TABLES:
        yield from ("", f"## {table.name}", "", f"{table.comment}.", "")
        yield f"Key: {_names(table.key)}. Clustered by {_names(table.clustered_by)}."
        yield ""
        rows = (
            (f"`{each.name}`", _code(each.type) + ("" if each.required else ", NULL"), each.comment)
            for each in table.columns
        )
        yield from _table(("column", "type", "meaning"), rows)
    for view in VIEWS:
        _, columns, comment = _declaration(view)
        yield from ("", f"## {view}", "", f"A view. {comment}.", "")
        yield from _table(("column", "meaning"), ((f"`{name}`", meaning) for name, _, _, meaning in columns))


def _functions_page() -> Iterator[str]:
    yield from _heading("SQL functions", "`lib/coldlog/lookups/sql`")
    yield "[Ask in SQL](../how-to/ask-in-sql.md) shows how to get a session, and an example of each function."
    for function in FUNCTIONS:
        parameters, columns, comment = _declaration(function)
        signature = ", ".join(
            f"{name} {type_}{f' DEFAULT {default}' if default else ''}" for name, type_, default, _ in parameters
        )
        yield from ("", f"## {function}", "", f"`{function}({signature})`", "", f"{comment}.", "")
        yield from _table(("argument", "type", "meaning"), (_typed(each) for each in parameters))
        yield ""
        yield from _table(("column", "type", "meaning"), (_typed(each) for each in columns))


_Declared = tuple[str, str, str, str]
"""Of an argument or a column: name, type, default, comment."""


def _typed(declared: _Declared) -> tuple[str, ...]:
    name, type_, default, comment = declared
    return f"`{name}`", type_, comment + (f"; default `{default}`" if default else "")


def _declaration(name: str) -> tuple[list[_Declared], list[_Declared], str]:
    """Arguments, columns and comment of a function or view, as its SQL declares them."""
    text = query_text(name)
    head = text[text.index("CREATE OR REPLACE") :]
    end = re.search(r"^\)\s*" + _COMMENT, head, re.MULTILINE)
    assert end is not None, f"{name}: the SQL has no comment after its columns"
    arguments, _, columns = head[: end.start()].rpartition("RETURNS TABLE (")
    return _declared(arguments), _declared(columns), end[1].replace("''", "'")


def _declared(text: str) -> list[_Declared]:
    return [(each[1], each[2] or "", each[3] or "", each[4].replace("''", "'")) for each in _COLUMN.finditer(text)]


def _codes_page() -> Iterator[str]:
    yield from _heading("Exit codes and error codes", "the code; see `docs/reference.py`")
    yield from ("## Exit codes of jobs", "")
    yield from _table(("code", "meaning"), ((str(code), meaning) for code, meaning in EXIT_CODES.items()))
    yield from ("", "## Error codes of ListOffsets", "")
    yield "Numbers and names are Kafka's. Codes from 10000 on are coldlog's own."
    yield ""
    yield from _table(("code", "error", "meaning"), ((str(e.value), f"`{e.name}`", e.meaning) for e in ErrorCode))
    yield from ("", "## Error codes of a fetch", "")
    yield from _table(("code", "error", "meaning"), ((str(e.value), f"`{e.name}`", e.meaning) for e in FetchErrorCode))
    yield from ("", "## Kinds of discrepancies", "")
    yield "The column `kind` of [`coldlog.discrepancies`](tables.md#discrepancies)."
    yield ""
    yield from _table(
        ("kind", "severity", "what to do"),
        ((f"`{each.value}`", each.severity.value, each.advice) for each in DiscrepancyKind),
    )
    yield from ("", "## Reasons of quarantine", "")
    yield "The column `reason` of [`coldlog.quarantine`](tables.md#quarantine). Each row there has a message."
    yield ""
    yield ", ".join(f"`{each.value}`" for each in Reason) + "."


def _heading(title: str, source: str) -> Iterator[str]:
    yield from (f"# {title}", "", f"This page is generated from {source}: `make reference` writes it.", "")


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield _line(header)
    yield _line(("---",) * len(header))
    yield from map(_line, rows)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(each.replace("|", "\\|").replace("\n", " ") for each in cells) + " |"


def _code(type_: str) -> str:
    """Types with brackets are written as code, because Markdown takes brackets for HTML."""
    return f"`{type_}`" if "<" in type_ else type_


def _names(columns: Iterable[str]) -> str:
    return ", ".join(f"`{each}`" for each in columns)


def _first_sentence(documentation: str | None) -> str:
    return " ".join((documentation or "").split("\n\n")[0].split())


PAGES: Mapping[str, Callable[[], Iterator[str]]] = {
    "settings.md": _settings_page,
    "jobs.md": _jobs_page,
    "tables.md": _tables_page,
    "sql-functions.md": _functions_page,
    "codes.md": _codes_page,
}


if __name__ == "__main__":
    sys.exit(main())
