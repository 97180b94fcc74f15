"""The DAG files, as Airflow understands them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import environment
import pytest

from coldlog.launch.submit import list_jobs
from coldlog.tables.definitions.catalog import ALL_TABLES
from servers.airflow_home import AirflowHome

DAGS = environment.REPOSITORY / "dags"


def facts(airflow: AirflowHome, folder: Path = DAGS, **variables: str) -> dict[str, Any]:
    ended = airflow.run_python(Path(__file__).with_name("dag_facts.py"), str(folder), variables)
    assert ended.exit_code == 0, ended.log
    told: dict[str, Any] = json.loads(ended.log.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def bag(airflow: AirflowHome) -> dict[str, Any]:
    """With the defaults: no variable of coldlog's is set."""
    return facts(replace(airflow, variables={}))


def test_every_file_imports_and_there_are_four_dags(bag: dict[str, Any]) -> None:
    assert (bag["import_errors"], bag["warnings"]) == ({}, [])
    assert sorted(bag["dags"]) == ["coldlog_expiry", "coldlog_lookup", "coldlog_maintenance", "coldlog_pipeline"]


def test_a_file_that_does_not_import_is_seen(airflow: AirflowHome, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("from airflow.sdk import DAG, Cart\n")
    assert "Cart" in str(facts(airflow, tmp_path)["import_errors"])


@pytest.mark.parametrize(
    ("dag_id", "schedule"),
    [
        ("coldlog_pipeline", "@hourly"),
        ("coldlog_maintenance", "30 0 * * *"),
        ("coldlog_expiry", "45 0 * * *"),
        ("coldlog_lookup", "None"),
    ],
)
def test_runs_are_on_time_never_overlap_and_are_not_made_up_for(
    bag: dict[str, Any], dag_id: str, schedule: str
) -> None:
    dag = bag["dags"][dag_id]
    assert (dag["schedule"], dag["max_active_runs"], dag["catchup"]) == (schedule, 1, False)
    assert dag["tags"] == ["coldlog", "kafka"]
    assert dag["doc"].splitlines()[0].endswith("."), "one plain sentence"


def test_every_task_submits_a_job_that_exists_and_is_tried_again_later_and_later(bag: dict[str, Any]) -> None:
    tasks = [task for dag in bag["dags"].values() for task in dag["tasks"]]
    assert {task["job"] for task in tasks} <= list_jobs(environment.REPOSITORY / "jobs").keys()
    for task in tasks:
        assert (task["class"], task["conn_id"], task["pool"]) == (
            "SparkSubmitOperator",
            "spark_default",
            "default_pool",
        )
        assert (task["retries"], task["retry_delay_s"], task["backoff"], task["max_retry_delay_s"]) == (3, 300, 2, 3600)
        assert task["timeout_s"] == 12 * 3600


def test_the_pipeline_scans_builds_materializes_and_validates_in_this_order(bag: dict[str, Any]) -> None:
    assert bag["dags"]["coldlog_pipeline"]["edges"] == [
        ["build_indexes", "materialize_metadata"],
        ["materialize_metadata", "validate_tables"],
        ["scan_segments", "build_indexes"],
    ]


def test_each_table_is_an_asset_by_name_and_says_where_it_lies(airflow: AirflowHome, bag: dict[str, Any]) -> None:
    def outlets(told: dict[str, Any]) -> dict[str, str]:
        tasks = told["dags"]["coldlog_pipeline"]["tasks"]
        return {name: uri for task in tasks for name, uri in task["outlets"].items()}

    nominal = outlets(bag)
    assert nominal["coldlog.partition_metadata"] == "coldlog://warehouse/partition_metadata"
    local = outlets(facts(airflow, COLDLOG_WAREHOUSE="/data/ware house/"))
    assert local["coldlog.partition_metadata"] == "file:///data/ware house/partition_metadata"
    remote = outlets(facts(airflow, COLDLOG_WAREHOUSE="s3a://bucket/coldlog"))
    assert remote["coldlog.time_index"] == "s3a://bucket/coldlog/time_index"
    assert nominal.keys() == local.keys() == remote.keys()


def test_a_warehouse_that_depends_on_the_directory_is_refused_where_airflow_shows_it(airflow: AirflowHome) -> None:
    errors = facts(airflow, COLDLOG_WAREHOUSE="warehouse")["import_errors"]
    assert len(errors) == 4
    assert all("expected an absolute path or a URI" in error for error in errors.values())


def test_assets_are_tables_of_the_warehouse(bag: dict[str, Any]) -> None:
    tasks = [task for dag in bag["dags"].values() for task in dag["tasks"]]
    assets = {name for task in tasks for name in task["outlets"]}
    assert assets <= {f"coldlog.{table.name}" for table in ALL_TABLES}
    assert {"coldlog.segments", "coldlog.partition_metadata", "coldlog.time_index"} <= assets


def test_the_environment_says_what_differs_between_deployments(airflow: AirflowHome) -> None:
    told = facts(
        airflow,
        COLDLOG_CONN_ID="spark_cluster",
        COLDLOG_POOL="writers",
        COLDLOG_PIPELINE_SCHEDULE="*/10 * * * *",
        COLDLOG_MAINTENANCE_SCHEDULE="@weekly",
        COLDLOG_EXPIRY_SCHEDULE="@monthly",
        COLDLOG_RETRIES="7",
        COLDLOG_RETRY_DELAY_SECONDS="30",
        COLDLOG_TIMEOUT_MINUTES="90",
    )["dags"]
    assert told["coldlog_pipeline"]["schedule"] == "*/10 * * * *"
    assert told["coldlog_maintenance"]["schedule"] == "@weekly"
    assert told["coldlog_expiry"]["schedule"] == "@monthly"
    task = told["coldlog_pipeline"]["tasks"][0]
    assert (task["conn_id"], task["pool"]) == ("spark_cluster", "writers")
    assert (task["retries"], task["retry_delay_s"], task["timeout_s"]) == (7, 30, 5400)
