"""coldlog_jobs: how does a task of Airflow become a job of coldlog?

Airflow and coldlog live in Python environments of their own. When a task runs, it asks the coldlog of the machine it
runs on (`python -m coldlog.launch_options`) what plain `spark-submit` has to be given, and submits `jobs/<job>.py` with
it, at the master of the Spark connection. So there is one place that knows jars, memory and variables, and a DAG file
that was parsed elsewhere holds none of them.

What differs between deployments is in no DAG file:

- when a task runs, Airflow Variables (`coldlog_home`, `coldlog_env`, `coldlog_settings`), or else environment variables
  of the same names in capitals, or else the checkout in which this file lies and its conf/local.toml;
- when a DAG file is parsed, environment variables alone (`Deployment`).

Refused without a retry: settings that coldlog refuses. Everything else is tried again.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, Context, Variable
from airflow.sdk.exceptions import AirflowException, AirflowFailException

START_DATE = datetime(2026, 1, 1, tzinfo=UTC)
"""Runs of the past are not made up for (catchup is off): any day before the first run will do."""

_EXIT_USAGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What a DAG file has to know when it is parsed. `warehouse` is None where conf says it."""

    conn_id: str
    warehouse: str | None
    pool: str
    pipeline_schedule: str
    maintenance_schedule: str
    expiry_schedule: str
    retries: int
    retry_delay: timedelta
    timeout: timedelta

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Deployment:
        """The deployment that environment variables describe."""
        return cls(
            conn_id=environment.get("COLDLOG_CONN_ID", "spark_default"),
            warehouse=_warehouse(environment.get("COLDLOG_WAREHOUSE", "")),
            pool=environment.get("COLDLOG_POOL", "default_pool"),
            pipeline_schedule=environment.get("COLDLOG_PIPELINE_SCHEDULE", "@hourly"),
            maintenance_schedule=environment.get("COLDLOG_MAINTENANCE_SCHEDULE", "30 0 * * *"),
            expiry_schedule=environment.get("COLDLOG_EXPIRY_SCHEDULE", "45 0 * * *"),
            retries=int(environment.get("COLDLOG_RETRIES", "3")),
            retry_delay=timedelta(seconds=float(environment.get("COLDLOG_RETRY_DELAY_SECONDS", "300"))),
            timeout=timedelta(minutes=float(environment.get("COLDLOG_TIMEOUT_MINUTES", "720"))),
        )

    @property
    def default_args(self) -> dict[str, object]:
        """Of every task: the delay doubles from try to try, up to an hour."""
        return {
            "retries": self.retries,
            "retry_delay": self.retry_delay,
            "retry_exponential_backoff": 2.0,
            "max_retry_delay": timedelta(hours=1),
            "execution_timeout": self.timeout,
            "pool": self.pool,
        }

    def table(self, name: str) -> Asset:
        """A table as an asset: consumers name it `coldlog.<table>`; its uri is where it lies, as far as it is told."""
        warehouse = self.warehouse or "coldlog://warehouse"
        root = warehouse if "://" in warehouse else f"file://{warehouse}"
        return Asset(name=f"coldlog.{name}", uri=f"{root}/{name}", group="coldlog")

    def tables(self, *names: str) -> list[Asset]:
        """Several tables."""
        return [self.table(name) for name in names]


def _warehouse(text: str) -> str | None:
    """None where nothing was said."""
    if text and not text.startswith("/") and "://" not in text:
        raise ValueError(f"COLDLOG_WAREHOUSE={text}: expected an absolute path or a URI")
    return text.rstrip("/") or None


DEPLOYMENT = Deployment.of(os.environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfiguration:
    """Which coldlog a task starts, and with which settings."""

    home: Path
    env: str
    settings: Mapping[str, str]

    @classmethod
    def read(cls) -> JobConfiguration:
        """That of the running task."""
        return cls(
            home=Path(_told("coldlog_home") or Path(__file__).resolve().parent.parent),
            env=_told("coldlog_env") or "local",
            settings=_settings(_told("coldlog_settings") or "{}", DEPLOYMENT.warehouse),
        )

    @property
    def arguments(self) -> list[str]:
        """The options that every job and `coldlog.launch_options` take."""
        return ["--env", self.env, *(f"--set={key}={value}" for key, value in self.settings.items())]


class ColdlogJob(SparkSubmitOperator):  # type: ignore[misc]  # Airflow is not installed where types are checked
    """Runs one job of coldlog by spark-submit.

    `job` is the name of a file in jobs/. `job_arguments` makes its arguments from the run's params; without it there
    are none beyond the settings.
    """

    def __init__(
        self,
        *,
        job: str,
        job_arguments: Callable[[Mapping[str, object]], list[str]] | None = None,
        **options: object,
    ) -> None:
        super().__init__(conn_id=DEPLOYMENT.conn_id, name=f"coldlog {job}", **options)
        self.job = job
        self.job_arguments = job_arguments

    def execute(self, context: Context) -> None:
        """Ask coldlog, then submit."""
        own_arguments = self.job_arguments(context["params"]) if self.job_arguments else []
        configuration = JobConfiguration.read()
        launch = _ask_coldlog(configuration, self._get_hook()._connection["master"])
        self.application = str(configuration.home / "jobs" / f"{self.job}.py")
        self.conf = launch["options"]
        self.env_vars = launch["environment"]
        self.application_args = [*configuration.arguments, *own_arguments]
        super().execute(context)


def lookup_arguments(params: Mapping[str, object]) -> list[str]:
    """The command line of lookup_offsets; what is None or empty was not given."""
    given = {name: value for name, value in params.items() if value not in (None, "")}
    if ("requests" in given) == ("topic" in given and "timestamp" in given):
        raise AirflowFailException("give either topic and timestamp (and a partition, or all are meant), or requests")
    # One word each: a value that begins with a dash stays a value.
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]


def _ask_coldlog(configuration: JobConfiguration, master: str) -> dict[str, dict[str, str]]:
    python = configuration.home / ".venv" / "bin" / "python"
    if not python.exists():
        advice = "run `make setup` there, or set the Variable coldlog_home"
        raise AirflowException(f"no coldlog at {configuration.home} on this machine: {advice}")
    command = [str(python), "-P", "-m", "coldlog.launch_options", "--master", master, *configuration.arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode == _EXIT_USAGE:
        raise AirflowFailException(answer.stderr.strip())
    if answer.returncode != 0:
        raise AirflowException(f"coldlog did not say how to start a job:\n{answer.stderr.strip()}")
    launch: dict[str, dict[str, str]] = json.loads(answer.stdout)
    return launch


def _told(name: str) -> str | None:
    value: str | None = Variable.get(name, default=None)
    return value or os.environ.get(name.upper())


def _settings(text: str, warehouse: str | None) -> dict[str, str]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise AirflowFailException(f"coldlog_settings is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise AirflowFailException('coldlog_settings is not a JSON object such as {"archive.uri": "/mnt/tiered"}')
    settings = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in content.items()}
    if warehouse is None:
        return settings
    if "warehouse.uri" in settings:
        raise AirflowFailException("warehouse.uri is in coldlog_settings, and COLDLOG_WAREHOUSE is set too: drop one")
    return {**settings, "warehouse.uri": warehouse}
