"""Test how dags/coldlog_jobs.py reads its variables, without Airflow; tests/airflow uses a real one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import environment
import pytest

from dag_jobs import FailError, MissingError, load_dag_jobs


@pytest.fixture(scope="module")
def jobs() -> Iterator[Any]:
    """The module, with stand-ins for the names that it imports from Airflow."""
    with load_dag_jobs(environment.REPOSITORY / "dags") as module:
        yield module


def test_variables_that_are_set_count_and_the_rest_have_defaults(jobs: Any) -> None:
    told = jobs.Deployment.of({"COLDLOG_RETRIES": "0", "COLDLOG_TIMEOUT_MINUTES": "1.5", "COLDLOG_POOL": "writers"})
    assert (told.retries, told.timeout, told.pool) == (0, timedelta(seconds=90), "writers")
    assert (told.retry_delay, told.conn_id, told.warehouse) == (timedelta(minutes=5), "spark_default", None)
    assert told.pipeline_schedule == "@hourly"


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("COLDLOG_RETRIES", ["", "x", "-3", "1.5", "9" * 5_000], "expected a whole number from 0"),
        ("COLDLOG_RETRY_DELAY_SECONDS", ["", "x", "-1", "inf", "nan", "1e300"], "expected a number from 0 to 31536000"),
        ("COLDLOG_TIMEOUT_MINUTES", ["", "0", "-1", "inf", "nan", "1e9"], "expected a number from 1 to 525600"),
        ("COLDLOG_POOL", ["", " "], "is empty.*default_pool is the default"),
        ("COLDLOG_CONN_ID", ["", " "], "is empty.*spark_default is the default"),
        ("COLDLOG_PIPELINE_SCHEDULE", ["", " "], "is empty.*@hourly is the default"),
        ("COLDLOG_MAINTENANCE_SCHEDULE", ["", " "], "is empty"),
        ("COLDLOG_EXPIRY_SCHEDULE", ["", " "], "is empty"),
    ],
)
def test_an_invalid_variable_is_refused_with_its_name(jobs: Any, name: str, values: list[str], expected: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^{name} .*{expected}"):
            jobs.Deployment.of({name: value})


@pytest.mark.parametrize(
    ("text", "place", "address"),
    [
        ("/data/ware house/", "/data/ware house", "file:///data/ware house/segments"),
        ("/data/a?b@c%20d", "/data/a?b@c%20d", "file:///data/a?b@c%20d/segments"),
        ("file:/data/w", "/data/w", "file:///data/w/segments"),
        ("file:///data/a%20b/", "/data/a b", "file:///data/a b/segments"),
        ("file://localhost/data/w", "/data/w", "file:///data/w/segments"),
        ("s3a://bucket/a/", "s3a://bucket/a", "s3a://bucket/a/segments"),
        ("hdfs://name:8020/w", "hdfs://name:8020/w", "hdfs://name:8020/w/segments"),
        ("hdfs:///w", "hdfs:///w", "hdfs:///w/segments"),
    ],
)
def test_the_warehouse_is_where_its_assets_are(jobs: Any, text: str, place: str, address: str) -> None:
    told = jobs.Deployment.of({"COLDLOG_WAREHOUSE": text})
    assert (told.warehouse, told.table("segments")["uri"]) == (place, address)


@pytest.mark.parametrize(
    "text",
    [
        "s3://name:abc123@bucket/x",
        "s3://abc123@bucket/x",
        "S3A://name:abc/123@bucket/abc123",
        "s3://name%3Aabc123%40bucket/x",
        "s3://name%253Aabc123%2540bucket/x",
        "s3://bucket/x?Signature=abc123",
        "https://account.blob.core.windows.net/x?sig=abc123",
        "s3://bucket/x#abc123",
    ],
)
def test_a_warehouse_with_a_secret_is_refused_and_not_shown(jobs: Any, text: str) -> None:
    with pytest.raises(ValueError, match="COLDLOG_WAREHOUSE holds a user, a password or a signature") as caught:
        jobs.Deployment.of({"COLDLOG_WAREHOUSE": text})
    assert "abc123" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["warehouse", "/", "s3://", "s3:/abc123", "file:abc123", "file://abc123/x", "name:abc123@bucket"]
)
def test_a_warehouse_that_is_not_a_place_is_refused_and_not_shown(jobs: Any, text: str) -> None:
    with pytest.raises(ValueError, match="COLDLOG_WAREHOUSE .*expected an absolute path or a URI") as caught:
        jobs.Deployment.of({"COLDLOG_WAREHOUSE": text})
    assert "abc123" not in str(caught.value)


def test_settings_are_texts_as_after_set(jobs: Any) -> None:
    settings = {"a.b": "c", "a.d": 5, "a.e": True, "a.f": 0.5}
    assert jobs._settings(json.dumps(settings), "/w") == {
        "a.b": "c",
        "a.d": "5",
        "a.e": "true",
        "a.f": "0.5",
        "warehouse.uri": "/w",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a.b": null}', "coldlog_settings: a.b is null; expected a text"),
        ('{"a.b": [1]}', "coldlog_settings: a.b is a list; expected a text"),
        ('{"a": {"b": 1}}', "coldlog_settings: a is an object; expected .* the setting's full name"),
        ("[]", "coldlog_settings is not a JSON object"),
        ("{", "coldlog_settings is not JSON"),
        ("[" * 100_000, "coldlog_settings is not JSON"),
        ('{"a.b": ' + "9" * 5_000 + "}", "coldlog_settings is not JSON"),
    ],
)
def test_invalid_settings_are_refused_with_the_name_of_the_variable(jobs: Any, text: str, told: str) -> None:
    with pytest.raises(FailError, match=told):
        jobs._settings(text, None)


@pytest.mark.parametrize("python", [".venv/bin/python", "bin/python"])
def test_a_home_is_a_checkout_or_an_environment_with_the_package(jobs: Any, tmp_path: Path, python: str) -> None:
    home = jobs.JobConfiguration(home=tmp_path, env="local", settings={})
    with pytest.raises(MissingError, match=f"no coldlog at {tmp_path} on this machine: set the Variable coldlog_home"):
        home.find_python()
    (tmp_path / python).parent.mkdir(parents=True)
    (tmp_path / python).touch()
    assert home.find_python() == tmp_path / python
