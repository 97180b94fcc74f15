"""Load dags/coldlog_jobs.py without Airflow, which has an environment of its own; tests/airflow uses a real one."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import pytest


class FailError(Exception):
    """Stands for AirflowFailException."""


class MissingError(Exception):
    """Stands for AirflowException."""


class Submitted:
    """Stands for SparkSubmitOperator: after `execute`, its attributes are what spark-submit gets."""

    def __init__(self, *, task_id: str, conn_id: str, name: str) -> None:
        self.task_id, self.conn_id, self.name = task_id, conn_id, name
        self.application, self.application_args = "", [""]
        self.conf: dict[str, str] = {}
        self.env_vars: dict[str, str] = {}

    def _get_hook(self) -> SimpleNamespace:
        return SimpleNamespace(_connection={"master": "local[1]"})

    def execute(self, context: object) -> None:
        """Submit nothing."""


@contextmanager
def load_dag_jobs(folder: Path, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[Any]:
    """Import coldlog_jobs of the folder; `variables` are Airflow's, and the environment has none of coldlog's."""

    def get_variable(name: str, default: str | None) -> str | None:
        return variables.get(name, default)

    taken: dict[str, dict[str, Any]] = {
        "airflow.providers.apache.spark.operators.spark_submit": {"SparkSubmitOperator": Submitted},
        "airflow.sdk": {
            "Asset": dict,
            "Context": dict,
            "Variable": SimpleNamespace(get=get_variable),
        },
        "airflow.sdk.exceptions": {"AirflowException": MissingError, "AirflowFailException": FailError},
    }
    specification = importlib.util.spec_from_file_location("coldlog_jobs", folder / "coldlog_jobs.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    with pytest.MonkeyPatch.context() as patch:
        for name, members in taken.items():
            parts = name.split(".")
            for count in range(1, len(parts) + 1):
                above = ".".join(parts[:count])
                patch.setitem(sys.modules, above, sys.modules.get(above) or ModuleType(above))
            vars(sys.modules[name]).update(members)
        for name in [each for each in os.environ if each.startswith("COLDLOG_")]:
            patch.delenv(name)
        patch.setitem(sys.modules, "coldlog_jobs", module)
        specification.loader.exec_module(module)
        yield module
