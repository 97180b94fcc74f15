"""conftest of tests/airflow: one Airflow for all tests, and one warehouse that its pipeline has filled."""

from __future__ import annotations

import json
import re
from pathlib import Path

import environment
import pytest

from servers.airflow_home import AirflowHome, Ended
from worlds.golden_warehouse import write_log_start_offsets
from worlds.kafka_sample import KAFKA_SAMPLE


def consumer_of_the_document() -> str:
    """The DAG file that docs/how-to/run-on-airflow.md shows to those who go on from coldlog's tables."""
    document = (environment.REPOSITORY / "docs" / "how-to" / "run-on-airflow.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> AirflowHome:
    """Airflow; without one every test of this folder fails."""
    assert environment.has_airflow(), "Airflow is not installed, or not as conf/airflow says: run `make test-airflow`"
    consumers, folder = tmp_path_factory.mktemp("consumers"), tmp_path_factory.mktemp("indexed")
    (consumers / "consumer.py").write_text(consumer_of_the_document(), encoding="utf-8")
    settings = {
        "archive.uri": str(KAFKA_SAMPLE / "archive"),
        "archive.layout": "local_tiered_storage",
        "log_start_offsets.uri": str(write_log_start_offsets(folder / "log_start_offsets.csv")),
    }
    home = AirflowHome(
        home=tmp_path_factory.mktemp("airflow"),
        consumers=consumers,
        warehouse=folder / "warehouse",
        variables={
            "COLDLOG_WAREHOUSE": str(folder / "warehouse"),
            "COLDLOG_RETRIES": "0",
            "AIRFLOW_VAR_COLDLOG_SETTINGS": json.dumps(settings),
            # What an Airflow with another Spark has in its environment: a job of coldlog must not take it.
            "PYSPARK_PYTHON": "/nowhere/python",
            "SPARK_HOME": "/nowhere/spark",
        },
    )
    home.migrate()
    return home


@pytest.fixture(scope="session")
def pipeline_run(airflow: AirflowHome) -> Ended:
    """`airflow dags test coldlog_pipeline` over the golden archive, into a warehouse that is not there yet."""
    return airflow.test_dag("coldlog_pipeline")


@pytest.fixture
def warehouse(airflow: AirflowHome, pipeline_run: Ended) -> Path:
    """The warehouse that the pipeline has filled."""
    assert pipeline_run.exit_code == 0, pipeline_run.log
    return airflow.warehouse
