"""Load the expectation suites, which say what must be true of each table.

A suite is `conf/expectations/<table>.json`, in Great Expectations' form of an ExpectationSuite. Its views are queries
in `conf/expectations/sql/<view>.sql`; they make rows that simple expectations can check. `meta` of a suite names its
views. `where` of a view lists the columns that locate a row. `rows` is a column with the number of table rows that one
row of the view stands for, if these are many. The first view is that of the table itself. `meta` of an expectation has
its `id` and its `view`. The parameters in the text of a view are the tables that it reads.

A condition on two columns of a row is written in `meta` as `"holds": ["end_offset", ">=", "start_offset"]`. It becomes
a column of the view that is named by the expectation's id. The column is NULL if the condition holds, otherwise it
shows both values; the expectation is that it is NULL. Great Expectations counts all such columns in one pass over the
view, but would need a pass for each pair. A comparison with a missing value holds, unless it uses `<=>`.

Every table of the catalog must have a suite, so that a lost file is an error and no table is skipped silently. A table
without conditions has a suite without views and expectations, and is shown with 0 expectations.

Refused with `UsageError`: a suite that is missing, that cannot be read, that belongs to no known table, or that refers
to something it does not define.
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
from coldlog.runtime.installation import CONF
from coldlog.tables.definitions.catalog import ALL_TABLES

EXPECTATIONS = CONF / "expectations"
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
    """A query over tables; the module docstring explains `where` and `rows`."""

    name: str
    query: str
    reads: tuple[str, ...]
    is_by_build: bool
    where: tuple[str, ...]
    rows: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One condition that must be true; `definition` is passed to Great Expectations."""

    id: str
    view: str
    severity: ExpectationSeverity
    description: str
    definition: Mapping[str, object]
    holds: tuple[str, str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The conditions on a table. `digest` changes when any part of the suite changes, a query included."""

    table: str
    views: tuple[View, ...]
    expectations: tuple[Expectation, ...]
    digest: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The table and all other tables that its views read."""
        return tuple(sorted({self.table, *(name for view in self.views for name in view.reads)}))

    def of_view(self, view: View) -> tuple[Expectation, ...]:
        """The expectations about the rows of `view`."""
        return tuple(each for each in self.expectations if each.view == view.name)


def load_suites(folder: Path = EXPECTATIONS) -> tuple[Suite, ...]:
    """Load the suite of every table, in the order of the catalog."""
    paths = {path.stem: path for path in sorted(folder.glob("*.json"))}
    tables = [table.name for table in ALL_TABLES]
    unknown = [path for name, path in paths.items() if name not in tables]
    if unknown:
        raise UsageError(f"{unknown[0]}: no such table; name the file after one of {', '.join(tables)}")
    if not paths:
        raise UsageError(f"{folder} holds no suite of expectations: nothing would be validated; restore the suites")
    missing = [f"{name}.json" for name in tables if name not in paths]
    if missing:
        raise UsageError(
            f"{folder}: {', '.join(missing)} missing: restore it, or, to validate nothing of that table, write "
            f"{_empty_suite(missing[0])}"
        )
    return tuple(_load_suite(paths[name]) for name in tables)


def _empty_suite(file_name: str) -> str:
    return json.dumps({"name": file_name.removesuffix(".json"), "meta": {"views": {}}, "expectations": []})


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as wrong:
        raise UsageError(f"{path} is not UTF-8: {wrong}") from wrong
    except FileNotFoundError as missing:
        raise UsageError(f"{path} is missing, but a suite names it as a view: restore it") from missing
    except OSError as refused:
        raise UsageError(f"{path} cannot be read: {refused.strerror}") from refused


def _load_suite(path: Path) -> Suite:
    text = _read_text(path)
    try:
        content = json.loads(text)
        views = tuple(_load_view(path.parent / "sql", name, options) for name, options in _views(content["meta"]))
        expectations = tuple(_expectation(each) for each in content["expectations"])
        name = content["name"]
    except (KeyError, TypeError, ValueError) as wrong:
        raise UsageError(f"{path} is not a suite of expectations: {type(wrong).__name__}: {wrong}") from wrong
    except RecursionError as wrong:
        raise UsageError(f"{path} is not a suite of expectations: it is nested too deeply") from wrong
    _require_whole(path, name, views, expectations)
    views = tuple(_with_comparisons(view, expectations) for view in views)
    digest = hashlib.sha256("\0".join([text, *(view.query for view in views)]).encode()).hexdigest()[:16]
    return Suite(table=path.stem, views=views, expectations=expectations, digest=digest)


def _views(meta: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    views = meta["views"]
    if not isinstance(views, dict):
        raise TypeError("meta.views is not an object of views by name")
    return views.items()


def _require_whole(path: Path, name: str, views: tuple[View, ...], expectations: tuple[Expectation, ...]) -> None:
    if name != path.stem:
        raise UsageError(f"{path}: the suite is named {name!r}; name it like its file and table, {path.stem!r}")
    ids = [each.id for each in expectations]
    repeated = sorted({id_ for id_ in ids if ids.count(id_) > 1})
    if repeated:
        raise UsageError(f"{path}: more than one expectation has the id {repeated[0]!r}")
    names = {view.name for view in views}
    for expectation in expectations:
        if expectation.view not in names:
            raise UsageError(f"{path}: the view {expectation.view!r} of {expectation.id} is not in meta.views")
        if expectation.holds is not None and expectation.definition["kwargs"] != {"column": expectation.id}:
            raise UsageError(
                f"{path}: {expectation.id} has `holds`, so its kwargs must be "
                f"{{'column': '{expectation.id}'}} and nothing else"
            )
    unused = sorted(names - {each.view for each in expectations})
    if unused:
        raise UsageError(f"{path}: no expectation uses the view {unused[0]!r}")


def _load_view(folder: Path, name: str, options: object) -> View:
    if not _NAME.fullmatch(name):
        raise ValueError(f"a view is named {name!r}, which is not a valid name of a query")
    path = folder / f"{name}.sql"
    query = _read_text(path)
    parameters = set(_PARAMETER.findall(_COMMENT.sub("", query)))
    reads = parameters - {AFTER_BUILD}
    unknown = sorted(reads - {table.name for table in ALL_TABLES})
    if unknown:
        raise UsageError(f"{path}: :{unknown[0]} is not a table; parameters are tables and :{AFTER_BUILD}")
    if not isinstance(options, dict):
        raise TypeError(f"meta.views.{name} is not an object with `where`")
    where, rows = options["where"], options.get("rows")
    if not isinstance(where, list) or not _are_texts(*where) or not isinstance(rows, str | None):
        raise TypeError(f"where of {name} is not a list of columns, or rows is not a column")
    return View(
        name=name,
        query=query,
        reads=tuple(sorted(reads)),
        is_by_build=AFTER_BUILD in parameters,
        where=tuple(where),
        rows=rows,
    )


def _with_comparisons(view: View, expectations: tuple[Expectation, ...]) -> View:
    """Add a column to the view for each expectation about two of its columns."""
    columns = []
    for expectation in expectations:
        if expectation.view == view.name and expectation.holds is not None:
            left, operator, right = expectation.holds
            values = f"concat('{left}=', ifnull(string({left}), 'NULL'), ' {right}=', ifnull(string({right}), 'NULL'))"
            columns.append(f"CASE WHEN NOT ({left} {operator} {right}) THEN {values} END AS {expectation.id}")
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
        raise TypeError(f"holds of {meta['id']} is not [column, operator, column]")
    left, operator, right = holds
    if operator not in _OPERATORS or not all(_NAME.fullmatch(each) for each in (left, right, str(meta["id"]))):
        raise ValueError(f"holds of {meta['id']} must compare two columns with one of {' '.join(_OPERATORS)}")
    return left, operator, right


def _expectation(content: Mapping[str, object]) -> Expectation:
    meta = content["meta"]
    if not isinstance(meta, dict) or not isinstance(content["kwargs"], dict):
        raise TypeError("meta and kwargs of an expectation must be objects")
    if not _are_texts(meta["id"], meta["view"]):
        raise TypeError("id and view of an expectation must be texts")
    return Expectation(
        id=meta["id"],
        view=meta["view"],
        severity=ExpectationSeverity(str(content["severity"])),
        description=str(content["description"]),
        holds=_holds(meta),
        definition={"type": str(content["type"]), **{key: value for key, value in content.items() if key != "type"}},
    )
