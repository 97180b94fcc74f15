"""Check with Great Expectations which expectations a view of the tables meets.

Only this module knows Great Expectations. The import takes seconds, so it happens when the first view is checked. The
context is ephemeral: only the Data Docs are kept and, as JSON below them, the results that they show, those of the
newest check of each view. Its output is silenced, and it sends no data.

The first validation of a view asks only for verdicts. Great Expectations computes these with one aggregate for all
expectations of a column. For the expectations that are not met, a second validation asks for counts and a few rows:
that takes several queries for each expectation, met or not.

Few rows are checked by pandas, in this process; Spark would start a job for each question of Great Expectations. The
verdicts are the same.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from coldlog.upkeep.expectation_suites import Expectation, Suite, View

_SAMPLE_ROWS = 5
_SITE = "coldlog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of an expectation.

    `unexpected_count` is None if it could not be evaluated; `problem` then says why. `sample` has some unexpected rows:
    where they are, and what was found.
    """

    expectation: Expectation
    is_met: bool
    unexpected_count: int | None
    sample: tuple[Mapping[str, object], ...] = ()
    problem: str | None = None


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """Great Expectations, ready to check the views of `suites`.

    `write_data_docs` fills the folder `data_docs`, if it is not None. At most `sample_rows` unexpected rows are shown.
    """

    suites: Sequence[Suite]
    data_docs: Path | None = None
    sample_rows: int = _SAMPLE_ROWS
    _context: Any = None
    _data_source: Any = None
    _few_rows: Any = None

    def check(self, view: View, expectations: Sequence[Expectation], rows: DataFrame | pa.Table) -> list[Verdict]:
        """Return the verdict on each expectation, in order.

        Rows of Spark are read twice, and again for each failure. A table of Arrow is checked without Spark.
        """
        with _silence():
            self._start()
            in_driver = isinstance(rows, pa.Table)
            data_source = self._few_rows if in_driver else self._data_source
            asset = data_source.add_dataframe_asset(view.name)
            try:
                data = asset.add_batch_definition_whole_dataframe("all")
                result = self._check(view, expectations, data, _pandas_frame(rows) if in_driver else rows)
            finally:
                data_source.delete_asset(view.name)
        by_id = {_id(each): each for each in result.results}
        return [_verdict(view, each, by_id[each.id]) for each in expectations]

    def _check(self, view: View, expectations: Sequence[Expectation], data: Any, rows: Any) -> Any:
        # Not a checkpoint: it would first compare and store suite and definition, which takes as long as the queries.
        batch = data.get_batch(batch_parameters={"dataframe": rows})
        result = batch.validate(_ge_suite(view, expectations), result_format="BOOLEAN_ONLY")
        failed = {_id(each) for each in result.results if not each.success}
        if failed:
            place = {"unexpected_index_column_names": list(view.where)}
            counted = {"result_format": "SUMMARY", "partial_unexpected_count": self.sample_rows, **place}
            suite = _ge_suite(view, [each for each in expectations if each.id in failed])
            detailed = {_id(each): each for each in batch.validate(suite, result_format=counted).results}
            result.results = [detailed.get(_id(each), each) for each in result.results]
        if self.data_docs is not None:
            self._store(view, result)
        return result

    def _store(self, view: View, result: Any) -> None:
        """Store the result of a view for its page, in place of the older one."""
        from great_expectations.core.run_identifier import RunIdentifier
        from great_expectations.data_context.types.resource_identifiers import (
            ExpectationSuiteIdentifier,
            ValidationResultIdentifier,
        )

        self._forget(view)
        run = RunIdentifier(run_time=datetime.now(UTC))
        result.meta |= {"run_id": run, "validation_time": run.run_time}
        suite = ExpectationSuiteIdentifier(view.name)
        key = ValidationResultIdentifier(
            expectation_suite_identifier=suite, run_id=run, batch_identifier=result.batch_id
        )
        self._context.validation_results_store.set(key, result)

    def _forget(self, view: View) -> None:
        """Remove the stored results of a view, because a page shows only the newest."""
        store = self._context.validation_results_store
        for key in store.list_keys():
            if key.expectation_suite_identifier.name == view.name:
                store.remove_key(key)

    def write_data_docs(self) -> bool:
        """Write a page with the newest result of each view that was ever checked; return False if none was."""
        if self.data_docs is None or self._context is None:
            return False
        with _silence():
            self._context.build_data_docs(site_names=[_SITE])
        return True

    def _start(self) -> None:
        if self._context is not None:
            return
        os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        context = gx.get_context(mode="ephemeral", project_config=_project(self.data_docs))
        context.enable_analytics(False)
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        for suite in self.suites:
            for view in suite.views:
                context.suites.add(_ge_suite(view, suite.of_view(view)))
        self._data_source = context.data_sources.add_spark("coldlog", persist=False)
        self._few_rows = context.data_sources.add_pandas("coldlog: few rows")
        self._context = context


def _ge_suite(view: View, expectations: Sequence[Expectation]) -> Any:
    import great_expectations as gx

    return gx.ExpectationSuite(name=view.name, expectations=[dict(each.definition) for each in expectations])


def _pandas_frame(rows: pa.Table) -> Any:
    """The rows as pandas has them; a whole number stays one beside a NULL, which a float of pandas would round."""
    import pandas as pd

    def with_nulls(of: pa.DataType) -> Any:
        if pa.types.is_boolean(of):
            return pd.BooleanDtype()
        return pd.Int64Dtype() if pa.types.is_integer(of) else None

    return rows.to_pandas(types_mapper=with_nulls)


def _project(data_docs: Path | None) -> Any:
    """Keep everything in memory except the files of the Data Docs."""
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults

    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False), analytics_enabled=False
    )
    config.data_docs_sites = {}
    if data_docs is not None:
        data_docs.mkdir(parents=True, exist_ok=True)
        config.stores["validation_results_store"]["store_backend"] = _folder(data_docs / "results")
        config.data_docs_sites[_SITE] = {
            "class_name": "SiteBuilder",
            "show_how_to_buttons": False,
            "store_backend": _folder(data_docs),
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        }
    return config


def _folder(path: Path) -> dict[str, object]:
    return {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(path)}


@contextmanager
def _silence() -> Iterator[None]:
    logger = logging.getLogger("great_expectations")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _id(result: Any) -> str:
    """The id of the expectation that a result is about."""
    return str(result.expectation_config.meta["id"])


def _verdict(view: View, expectation: Expectation, result: Any) -> Verdict:
    problem = _problem(result.exception_info)
    if problem is not None:
        return Verdict(expectation=expectation, is_met=False, unexpected_count=None, problem=problem)
    if result.success:
        return Verdict(expectation=expectation, is_met=True, unexpected_count=0)
    found = result.to_json_dict()["result"]
    return Verdict(
        expectation=expectation,
        is_met=False,
        unexpected_count=found["unexpected_count"],
        sample=tuple(
            {name: row[name] for name in (*view.where, *row) if name in row}
            for row in found.get("partial_unexpected_index_list") or ()
        ),
    )


def _problem(exception_info: Mapping[str, Any] | None) -> str | None:
    """Why an expectation could not be evaluated; the reason is at the top or in the info of each failed metric."""
    info = exception_info or {}
    entries = [info] if "raised_exception" in info else [value for value in info.values() if isinstance(value, dict)]
    messages = [str(entry.get("exception_message")) for entry in entries if entry.get("raised_exception")]
    return messages[0].partition("\n")[0] if messages else None


def sample_text(sample: Sequence[Mapping[str, object]]) -> str:
    """Write a sample as JSON."""
    return json.dumps([dict(row) for row in sample], ensure_ascii=False, default=str)
