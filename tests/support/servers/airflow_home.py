"""airflow_home: how does a test run DAGs in an Airflow of its own?

Airflow's own environment (.venv-airflow) is driven from outside, as its users do: by its command line, with a home in a
temporary directory. What became of a run is read from Airflow's database.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import environment

_INHERITED = ("PATH", "HOME", "JAVA_HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "SPARK_SUBMIT_OPTS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A program that ended, and all that it said."""

    exit_code: int
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One try of a task."""

    task: str
    number: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowHome:
    """An Airflow with a database of its own, that knows the repository's DAGs and those in `consumers`.

    `variables` are of its environment; `warehouse` is the one that they name.
    """

    home: Path
    consumers: Path
    warehouse: Path
    variables: Mapping[str, str]

    def migrate(self) -> None:
        """Make the database and fill it with what the DAG files say."""
        for command in (["db", "migrate"], ["dags", "reserialize"]):
            ended = self.run(command)
            assert ended.exit_code == 0, ended.log

    def run(self, arguments: list[str], variables: Mapping[str, str] = MappingProxyType({})) -> Ended:
        """A command of Airflow's; `variables` are of the environment, and win."""
        return self._run([str(environment.AIRFLOW / "bin" / "airflow"), *arguments], variables)

    def run_python(self, script: Path, argument: str, variables: Mapping[str, str]) -> Ended:
        """A program in Airflow's Python."""
        return self._run([str(environment.AIRFLOW / "bin" / "python"), "-P", str(script), argument], variables)

    def test_dag(
        self,
        dag_id: str,
        variables: Mapping[str, str] = MappingProxyType({}),
        *,
        conf: Mapping[str, object] = MappingProxyType({}),
    ) -> Ended:
        """`airflow dags test`: one run, from its first task to its last."""
        return self.run(["dags", "test", dag_id, "--conf", json.dumps(dict(conf))], variables)

    def last_run(self, dag_id: str) -> tuple[str, list[Try]]:
        """The state of the DAG's last run, and every try of its tasks, in the order of tasks' names and tries."""
        (run_id, state), *_ = self.query(
            "SELECT run_id, state FROM dag_run WHERE dag_id = ? ORDER BY id DESC LIMIT 1", dag_id
        )
        tries = self.query(
            "SELECT task_id, try_number, state FROM task_instance_history WHERE dag_id = :dag AND run_id = :run "
            "UNION SELECT task_id, try_number, state FROM task_instance WHERE dag_id = :dag AND run_id = :run "
            "ORDER BY task_id, try_number",
            {"dag": dag_id, "run": run_id},
        )
        return str(state), [Try(task=str(task), number=int(str(n)), state=str(told)) for task, n, told in tries]

    def query(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Rows of Airflow's database; values by position, or one mapping by name."""
        bound = values[0] if values and isinstance(values[0], dict) else values
        with sqlite3.connect(f"file:{self.home / 'airflow.db'}?mode=ro", uri=True) as database:
            rows: list[tuple[object, ...]] = database.execute(statement, bound).fetchall()
        database.close()
        return rows

    def _run(self, command: list[str], variables: Mapping[str, str]) -> Ended:
        bundles = [
            {"name": name, "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {"path": path}}
            for name, path in (("coldlog", str(environment.REPOSITORY / "dags")), ("consumers", str(self.consumers)))
        ]
        settings = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "false",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        }
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        ended = subprocess.run(
            command,
            cwd=self.home,
            env={**inherited, **settings, **self.variables, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return Ended(exit_code=ended.returncode, log=ended.stdout)
