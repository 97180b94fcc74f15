"""expectation_suites: what must be true of each table?

Suites are data: `conf/expectations/<table>.json`, in Great Expectations' own form of an ExpectationSuite, and
`conf/expectations/sql/<view>.sql`, queries that bring tables to rows of which simple things must be true. `meta` of a
suite names its views: `where` are the columns that tell the place of a row, `rows`, where a row of the view stands for
many of the table, the column that counts them. The first view is the table's own. `meta` of an expectation has its `id`
and its `view`; the tables that a view reads are the parameters in its text.

What must be true of two columns of a row is said in `meta` as `"holds": ["end_offset", ">=", "start_offset"]`. That
becomes a column of the view, named by the expectation's id, that is NULL where it holds and else tells both values; the
expectation is that it is NULL. Great Expectations counts all of these in one pass over the view, but pairs in one each.
A comparison with a missing value holds, unless it is made with `<=>`.

Every table of the catalog has a suite, so that a file that is lost fails, and passes nothing unseen. A table of which
nothing must be true has one with neither views nor expectations, and is shown with 0 of them.

Refused with `UsageError`: a suite that is missing, that cannot be read, of no known table, or that names what it does
not have.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from coldlog.errors import UsageError
from coldlog.runtime.settings_sources import REPOSITORY
from coldlog.tables.definitions.catalog import ALL_TABLES

EXPECTATIONS = REPOSITORY / "conf" / "expectations"
AFTER_BUILD = "after_build"

_OPERATORS = ("=", "<=>", ">=", ">", "<=", "<")
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_PARAMETER = re.compile(r":([a-z_][a-z0-9_]*)")
_COMMENT = re.compile(r"--[^\n]*")


class ExpectationSeverity(StrEnum):
    """What a failure means: `critical` fails the job, `warning` is shown."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A query over tables; see the module for `where` and `rows`."""

    name: str
    query: str
    reads: tuple[str, ...]
    is_by_build: bool
    where: tuple[str, ...]
    rows: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One thing that must be true; `definition` is what Great Expectations is given."""

    id: str
    view: str
    severity: ExpectationSeverity
    description: str
    definition: Mapping[str, object]
    holds: tuple[str, str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What must be true of a table. `digest` changes when anything of it does, a query included."""

    table: str
    views: tuple[View, ...]
    expectations: tuple[Expectation, ...]
    digest: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The table and all others that its views read."""
        return tuple(sorted({self.table, *(name for view in self.views for name in view.reads)}))

    def of_view(self, view: View) -> tuple[Expectation, ...]:
        """The expectations about the rows of `view`."""
        return tuple(each for each in self.expectations if each.view == view.name)


def load_suites(folder: Path = EXPECTATIONS) -> tuple[Suite, ...]:
    """The suite of every table, in the order of the catalog."""
    paths = {path.stem: path for path in sorted(folder.glob("*.json"))}
    tables = [table.name for table in ALL_TABLES]
    strangers = [path for name, path in paths.items() if name not in tables]
    if strangers:
        raise UsageError(f"{strangers[0]}: there is no such table; tables are {', '.join(tables)}")
    if not paths:
        raise UsageError(f"{folder} holds no suite of expectations: nothing would be validated; restore it")
    missing = [f"{name}.json" for name in tables if name not in paths]
    if missing:
        raise UsageError(
            f"{folder} lacks {', '.join(missing)}: restore what is missing; the suite of a table that is not to be "
            f"validated is {_suite_of_nothing(missing[0])}"
        )
    return tuple(_load_suite(paths[name]) for name in tables)


def _suite_of_nothing(file_name: str) -> str:
    return json.dumps({"name": file_name.removesuffix(".json"), "meta": {"views": {}}, "expectations": []})


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as wrong:
        raise UsageError(f"{path} is not UTF-8: {wrong}") from wrong
    except FileNotFoundError as missing:
        raise UsageError(f"{path} is missing: a suite names it as a view") from missing
    except OSError as refused:
        raise UsageError(f"{path} cannot be read: {refused.strerror}") from refused


def _load_suite(path: Path) -> Suite:
    text = _read_text(path)
    try:
        content = json.loads(text)
        views = tuple(_load_view(path.parent / "sql", name, own) for name, own in _views(content["meta"]))
        expectations = tuple(_expectation(each) for each in content["expectations"])
        name = content["name"]
    except (KeyError, TypeError, ValueError) as wrong:
        raise UsageError(f"{path} is no suite of expectations: {type(wrong).__name__}: {wrong}") from wrong
    except RecursionError as wrong:
        raise UsageError(f"{path} is no suite of expectations: it is nested too deeply") from wrong
    _require_whole(path, name, views, expectations)
    views = tuple(_with_comparisons(view, expectations) for view in views)
    digest = hashlib.sha256("\0".join([text, *(view.query for view in views)]).encode()).hexdigest()[:16]
    return Suite(table=path.stem, views=views, expectations=expectations, digest=digest)


def _views(meta: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    views = meta["views"]
    if not isinstance(views, dict):
        raise TypeError("meta.views is no object of views by name")
    return views.items()


def _require_whole(path: Path, name: str, views: tuple[View, ...], expectations: tuple[Expectation, ...]) -> None:
    if name != path.stem:
        raise UsageError(f"{path}: the suite is named {name!r}; name it as its file and its table, {path.stem!r}")
    ids = [each.id for each in expectations]
    repeated = sorted({each for each in ids if ids.count(each) > 1})
    if repeated:
        raise UsageError(f"{path}: {repeated[0]!r} is the id of more than one expectation")
    names = {view.name for view in views}
    for each in expectations:
        if each.view not in names:
            raise UsageError(f"{path}: {each.id} is about {each.view!r}, which meta.views does not name")
        if each.holds is not None and each.definition["kwargs"] != {"column": each.id}:
            raise UsageError(
                f"{path}: {each.id} has `holds`; its kwargs are then {{'column': '{each.id}'}}, and no other"
            )
    unused = sorted(names - {each.view for each in expectations})
    if unused:
        raise UsageError(f"{path}: no expectation is about the view {unused[0]!r}")


def _load_view(folder: Path, name: str, own: object) -> View:
    if not _NAME.fullmatch(name):
        raise ValueError(f"a view is named {name!r}, which is no name of a query")
    path = folder / f"{name}.sql"
    query = _read_text(path)
    parameters = set(_PARAMETER.findall(_COMMENT.sub("", query)))
    reads = parameters - {AFTER_BUILD}
    strangers = sorted(reads - {table.name for table in ALL_TABLES})
    if strangers:
        raise UsageError(f"{path}: :{strangers[0]} is no table; a query reads tables and knows :{AFTER_BUILD}")
    if not isinstance(own, dict):
        raise TypeError(f"meta.views.{name} is no object with `where`")
    where, rows = own["where"], own.get("rows")
    if not isinstance(where, list) or not _are_texts(*where) or not isinstance(rows, str | None):
        raise TypeError(f"where of {name} is no list of columns, or rows no column")
    return View(
        name=name,
        query=query,
        reads=tuple(sorted(reads)),
        is_by_build=AFTER_BUILD in parameters,
        where=tuple(where),
        rows=rows,
    )


def _with_comparisons(view: View, expectations: tuple[Expectation, ...]) -> View:
    """The view with a column for each expectation about two columns of it."""
    columns = []
    for each in expectations:
        if each.view == view.name and each.holds is not None:
            left, operator, right = each.holds
            told = f"concat('{left}=', ifnull(string({left}), 'NULL'), ' {right}=', ifnull(string({right}), 'NULL'))"
            columns.append(f"CASE WHEN NOT ({left} {operator} {right}) THEN {told} END AS {each.id}")
    if not columns:
        return view
    query = ",\n  ".join(["SELECT *", *columns]) + f"\nFROM (\n{view.query}\n)"
    return replace(view, query=query)


def _are_texts(*values: object) -> bool:
    return all(isinstance(each, str) for each in values)


def _holds(meta: Mapping[str, object]) -> tuple[str, str, str] | None:
    holds = meta.get("holds")
    if holds is None:
        return None
    if not isinstance(holds, list) or len(holds) != 3 or not _are_texts(*holds):
        raise TypeError(f"holds of {meta['id']} is no [column, operator, column]")
    left, operator, right = holds
    if operator not in _OPERATORS or not all(_NAME.fullmatch(each) for each in (left, right, str(meta["id"]))):
        raise ValueError(f"holds of {meta['id']} compares two columns by one of {' '.join(_OPERATORS)}")
    return left, operator, right


def _expectation(content: Mapping[str, object]) -> Expectation:
    meta = content["meta"]
    if not isinstance(meta, dict) or not isinstance(content["kwargs"], dict):
        raise TypeError("meta and kwargs of an expectation are objects")
    if not _are_texts(meta["id"], meta["view"]):
        raise TypeError("id and view of an expectation are texts")
    return Expectation(
        id=meta["id"],
        view=meta["view"],
        severity=ExpectationSeverity(str(content["severity"])),
        description=str(content["description"]),
        holds=_holds(meta),
        definition={"type": str(content["type"]), **{key: value for key, value in content.items() if key != "type"}},
    )
