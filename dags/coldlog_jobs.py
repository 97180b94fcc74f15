"""Run a job of coldlog as a task of Airflow.

Airflow and coldlog have separate Python environments. When a task runs, it asks the coldlog on its machine, which is
a checkout or an installed package (`python -m coldlog.launch_options`), for the options of plain `spark-submit` and the
folder of the jobs, and submits `<job>.py` with them to the master of the Spark connection. So only coldlog knows jobs,
jars, memory and variables, and a DAG file that was parsed on another machine holds none of them.

The differences between deployments are not in DAG files:

- When a task runs, they are Airflow Variables (`coldlog_home`, `coldlog_env`, `coldlog_settings`), else environment
  variables with the same names in capitals, else the checkout of this file and its sample archive. `coldlog_home` is
  a checkout, or the virtual environment in which the package is installed.
- When a DAG file is parsed, they are environment variables only (`Deployment`).

Refused with `ValueError` when a DAG file is parsed: an environment variable that is empty, not a number, or out of
range, and a warehouse address that holds a secret, because assets would show it. The message does not show it. Refused
without a retry: settings that coldlog refuses. Any other failure is tried again.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, Context, Variable
from airflow.sdk.exceptions import AirflowException, AirflowFailException

START_DATE = datetime(2026, 1, 1, tzinfo=UTC)
"""Any day before the first run: missed runs are not repeated (catchup is off)."""

_EXIT_USAGE = 2
_A_YEAR = timedelta(days=365)
_URI = re.compile(r"[a-z][a-z0-9+.-]+://(?P<authority>[^/]*)(?P<path>.*)", re.IGNORECASE)
_FILE = re.compile(r"file:(?://(?:localhost)?)?(?P<path>/(?!/).*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What a DAG file must know when it is parsed. `warehouse` is None if only conf names it."""

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
            conn_id=_text(environment, "COLDLOG_CONN_ID", "spark_default"),
            warehouse=_warehouse(environment.get("COLDLOG_WAREHOUSE", "")),
            pool=_text(environment, "COLDLOG_POOL", "default_pool"),
            pipeline_schedule=_text(environment, "COLDLOG_PIPELINE_SCHEDULE", "@hourly"),
            maintenance_schedule=_text(environment, "COLDLOG_MAINTENANCE_SCHEDULE", "30 0 * * *"),
            expiry_schedule=_text(environment, "COLDLOG_EXPIRY_SCHEDULE", "45 0 * * *"),
            retries=_count(environment, "COLDLOG_RETRIES", 3),
            retry_delay=_duration(environment, "COLDLOG_RETRY_DELAY_SECONDS", 300, timedelta(seconds=1), at_least=0),
            timeout=_duration(environment, "COLDLOG_TIMEOUT_MINUTES", 720, timedelta(minutes=1), at_least=1),
        )

    @property
    def default_args(self) -> dict[str, object]:
        """Arguments of every task; the retry delay doubles each time, up to an hour."""
        return {
            "retries": self.retries,
            "retry_delay": self.retry_delay,
            "retry_exponential_backoff": 2.0,
            "max_retry_delay": timedelta(hours=1),
            "execution_timeout": self.timeout,
            "pool": self.pool,
        }

    def table(self, name: str) -> Asset:
        """A table as an asset. Consumers name it `coldlog.<table>`; its uri is the table's place, if that is known."""
        warehouse = self.warehouse or "coldlog://warehouse"
        root = warehouse if "://" in warehouse else f"file://{warehouse}"
        return Asset(name=f"coldlog.{name}", uri=f"{root}/{name}", group="coldlog")

    def tables(self, *names: str) -> list[Asset]:
        """Several tables as assets."""
        return [self.table(name) for name in names]


def _text(environment: Mapping[str, str], name: str, default: str) -> str:
    value = environment.get(name, default).strip()
    if not value:
        raise ValueError(f"{name} is empty: set a value, or remove the variable ({default} is the default)")
    return value


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default)).strip()
    if not re.fullmatch("[0-9]{1,6}", text):
        raise ValueError(f"{name} = {text!r}: expected a whole number from 0 to 999999")
    return int(text)


def _duration(environment: Mapping[str, str], name: str, default: int, unit: timedelta, *, at_least: int) -> timedelta:
    text, at_most = environment.get(name, str(default)).strip(), _A_YEAR // unit
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not at_least <= number <= at_most:  # written so that nan is out of range
        raise ValueError(f"{name} = {text!r}: expected a number from {at_least} to {at_most}")
    return number * unit


def _warehouse(text: str) -> str | None:
    """Return None for an empty text, and the path of a file URI. A refused text is not shown: it may hold a secret."""
    text = text.strip()
    if not text:
        return None
    uri = _URI.fullmatch(text)
    file = _FILE.fullmatch(text)
    if file is None and uri is not None and _holds_a_secret(text, uri):
        raise ValueError(
            "COLDLOG_WAREHOUSE holds a user, a password or a signature (it is not shown): remove them and everything "
            "after ? or #; give credentials in the environment of the jobs"
        )
    place = (unquote(file["path"]) if file is not None else text).rstrip("/")
    is_elsewhere = uri is not None and not text.lower().startswith("file:") and not place.endswith(":")
    if not place.startswith("/") and not is_elsewhere:
        raise ValueError(
            "COLDLOG_WAREHOUSE (it is not shown): expected an absolute path or a URI: /folder, file:///folder or "
            "s3://bucket/prefix"
        )
    return place


def _holds_a_secret(text: str, uri: re.Match[str]) -> bool:
    """The same rule as in `coldlog.runtime.setting_uris`, which runs too late: assets would already show the secret."""
    authority = uri["authority"]
    while (decoded := unquote(authority)) != authority:
        authority = decoded
    # A secret key may hold a "/", which ends the authority. The ":" before it still shows a user: no bucket has one.
    is_user = "@" in authority or (text.lower().startswith("s3") and ":" in authority)
    return is_user or any(sign in text for sign in ("?", "#", "X-Amz-"))


DEPLOYMENT = Deployment.of(os.environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfiguration:
    """The coldlog that a task starts, and its settings. `home` is a checkout or a virtual environment."""

    home: Path
    env: str
    settings: Mapping[str, str]

    @classmethod
    def read(cls) -> JobConfiguration:
        """Read the configuration of the running task."""
        return cls(
            home=Path(_variable("coldlog_home") or Path(__file__).resolve().parent.parent),
            env=_variable("coldlog_env") or "local",
            settings=_settings(_variable("coldlog_settings") or "{}", DEPLOYMENT.warehouse),
        )

    def find_python(self) -> Path:
        """Find the interpreter that can import coldlog; `AirflowException` if there is none on this machine."""
        for folder in (self.home / ".venv", self.home):
            if (python := folder / "bin" / "python").exists():
                return python
        raise AirflowException(
            f"no coldlog at {self.home} on this machine: set the Variable coldlog_home to a checkout (and run "
            "`make setup` there), or to the virtual environment in which coldlog is installed"
        )

    @property
    def arguments(self) -> list[str]:
        """The options that every job and `coldlog.launch_options` accept."""
        return ["--env", self.env, *(f"--set={key}={value}" for key, value in self.settings.items())]


class ColdlogJob(SparkSubmitOperator):  # type: ignore[misc]  # Airflow is not installed where types are checked
    """Run one job of coldlog with spark-submit.

    `job` is the name of a job of coldlog. `job_arguments` makes the job's arguments from the params of the run; without
    it, the job only gets the settings.
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
        """Ask coldlog for the options, then submit the job."""
        job_arguments = self.job_arguments(context["params"]) if self.job_arguments else []
        configuration = JobConfiguration.read()
        launch = _ask_coldlog(configuration, self._get_hook()._connection["master"])
        self.application = f"{launch['jobs']}/{self.job}.py"
        self.conf = launch["options"]
        self.env_vars = launch["environment"]
        self.application_args = [*configuration.arguments, *job_arguments]
        super().execute(context)


def lookup_arguments(params: Mapping[str, object]) -> list[str]:
    """The command line of lookup_offsets, whose run is recorded; None and empty params are left out."""
    given = {name: value for name, value in params.items() if value not in (None, "")}
    if ("requests" in given) == ("topic" in given and "timestamp" in given):
        raise AirflowFailException("give either topic and timestamp (and a partition, if not all), or requests")
    # Name and value are one word, so that a value that begins with a dash stays a value.
    return ["--record-run", *(f"--{name.replace('_', '-')}={value}" for name, value in given.items())]


def _ask_coldlog(configuration: JobConfiguration, master: str) -> dict[str, Any]:
    python = str(configuration.find_python())
    command = [python, "-P", "-m", "coldlog.launch_options", "--master", master, *configuration.arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode == _EXIT_USAGE:
        raise AirflowFailException(answer.stderr.strip())
    if answer.returncode != 0:
        raise AirflowException(f"coldlog.launch_options failed:\n{answer.stderr.strip()}")
    launch: dict[str, Any] = json.loads(answer.stdout)
    return launch


def _variable(name: str) -> str | None:
    value: str | None = Variable.get(name, default=None)
    return value or os.environ.get(name.upper())


def _settings(text: str, warehouse: str | None) -> dict[str, str]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AirflowFailException(f"coldlog_settings is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise AirflowFailException('coldlog_settings is not a JSON object such as {"archive.uri": "/mnt/tiered"}')
    settings = {key: _setting(key, value) for key, value in content.items()}
    if warehouse is None:
        return settings
    if "warehouse.uri" in settings:
        raise AirflowFailException("warehouse.uri is in coldlog_settings and in COLDLOG_WAREHOUSE: remove one of them")
    return {**settings, "warehouse.uri": warehouse}


def _setting(key: str, value: object) -> str:
    """Write a value as after `--set`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    found = {type(None): "null", list: "a list", dict: "an object"}[type(value)]
    raise AirflowFailException(
        f"coldlog_settings: {key} is {found}; expected a text, a number, true or false, under the setting's full name"
    )
