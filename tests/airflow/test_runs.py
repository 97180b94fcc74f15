"""DAG runs from the first task to the last, over the golden archive."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from coldlog.errors import UsageError
from coldlog.reader import OffsetReader
from servers.airflow_home import AirflowHome, Ended, Try
from worlds.golden_warehouse import golden_queries, is_true_answer

pytestmark = pytest.mark.timeout(1800)

# What a run leaves behind even if there was nothing to do: that it ran, and what it checked.
RUN_TABLES = {"job_runs", "validation_results"}


WITHOUT_SEGMENTS = {("orders", 1), ("orders", 2)}


def versions(warehouse: Path) -> dict[str, int]:
    """The number of commits of each table."""
    return {
        log.parent.name: len([each for each in log.iterdir() if each.suffix == ".json"])
        for log in warehouse.glob("*/_delta_log")
    }


def successes(*tasks: str) -> list[Try]:
    return [Try(task=task, number=1, state="success") for task in tasks]


PIPELINE_SUCCESSES = successes("build_indexes", "materialize_metadata", "scan_segments", "validate_tables")


def answer_of(reader: OffsetReader, query: dict[str, object]) -> dict[str, object]:
    """As a row of lookup_offsets."""
    topic, partition, timestamp_ms = str(query["topic"]), int(str(query["partition"])), int(str(query["ts"]))
    if (topic, partition) in WITHOUT_SEGMENTS:
        with pytest.raises(UsageError, match=topic):
            reader.offset_for_timestamp(topic, partition, timestamp_ms)
        found = None
    else:
        found = reader.offset_for_timestamp(topic, partition, timestamp_ms)
    if found is None:
        return {"offset": None, "offset_timestamp_ms": None, "leader_epoch": None}
    return {
        "offset": found.offset,
        "offset_timestamp_ms": found.timestamp_ms,
        "leader_epoch": found.leader_epoch,
    }


def test_the_pipeline_runs_through_and_the_warehouse_answers_as_the_broker(
    airflow: AirflowHome, pipeline_run: Ended
) -> None:
    assert pipeline_run.exit_code == 0, pipeline_run.log
    assert airflow.last_run("coldlog_pipeline") == ("success", PIPELINE_SUCCESSES)
    assert "281 segments indexed" in pipeline_run.log
    reader = OffsetReader(str(airflow.warehouse))
    queries = golden_queries()[::7]
    wrong = [q for q in queries if not is_true_answer(q, answer_of(reader, q), broker_compatible=False)]
    assert wrong == []
    assert len(queries) > 1000


def test_a_consumer_is_queued_by_the_table_that_it_waits_for(airflow: AirflowHome, warehouse: Path) -> None:
    events = airflow.query(
        "SELECT source_task_id, name, uri FROM asset_event JOIN asset ON asset.id = asset_id "
        "WHERE source_dag_id = 'coldlog_pipeline'"
    )
    metadata = f"file://{warehouse}/partition_metadata"
    assert ("materialize_metadata", "coldlog.partition_metadata", metadata) in events
    queued = airflow.query("SELECT target_dag_id, name FROM asset_dag_run_queue JOIN asset ON asset.id = asset_id")
    assert ("report_coverage", "coldlog.partition_metadata") in queued


def test_a_second_run_finds_nothing_new_and_changes_nothing(airflow: AirflowHome, warehouse: Path) -> None:
    before = versions(warehouse)
    ended = airflow.test_dag("coldlog_pipeline")
    assert ended.exit_code == 0, ended.log
    assert airflow.last_run("coldlog_pipeline") == ("success", PIPELINE_SUCCESSES)
    changed = {table for table, version in versions(warehouse).items() if before.get(table) != version}
    assert changed <= RUN_TABLES
    assert "job_runs" in changed


def test_a_lookup_of_a_file_of_requests_writes_the_right_answers(
    airflow: AirflowHome, warehouse: Path, tmp_path: Path
) -> None:
    queries = golden_queries()[3::9]
    lines = [json.dumps({"topic": q["topic"], "partition": q["partition"], "timestamp_ms": q["ts"]}) for q in queries]
    (tmp_path / "requests.jsonl").write_text("\n".join(lines), encoding="utf-8")
    output = tmp_path / "answers.jsonl"
    conf = {"requests": str(tmp_path / "requests.jsonl"), "output": str(output)}
    runs = versions(warehouse)["job_runs"]
    ended = airflow.test_dag("coldlog_lookup", conf=conf)
    assert ended.exit_code == 0, ended.log
    assert versions(warehouse)["job_runs"] == runs + 1, "the run has its row"
    answers = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    wrong = [
        query
        for query, answer in zip(queries, answers, strict=True)
        if not is_true_answer(query, answer, broker_compatible=False)
    ]
    assert wrong == []


def test_a_lookup_of_one_time_asks_every_partition_of_the_topic(
    airflow: AirflowHome, warehouse: Path, tmp_path: Path
) -> None:
    query = next(q for q in golden_queries() if q["archive"] and isinstance(q["ru"], dict) and "scan" not in q)
    output = tmp_path / "answers.jsonl"
    conf = {"topic": query["topic"], "timestamp": query["ts"], "output": str(output)}
    ended = airflow.test_dag("coldlog_lookup", conf=conf)
    assert ended.exit_code == 0, ended.log
    answers = {a["partition"]: a for a in map(json.loads, output.read_text(encoding="utf-8").splitlines())}
    assert is_true_answer(query, answers[query["partition"]], broker_compatible=False)
    reader = OffsetReader(str(warehouse))
    for partition, answer in answers.items():
        asked = {**query, "partition": partition}
        assert answer_of(reader, asked) == {
            key: answer[key] for key in ("offset", "offset_timestamp_ms", "leader_epoch")
        }


@pytest.mark.parametrize(
    ("conf", "complaint"),
    [
        ({"topic": "orders"}, "give either topic and timestamp"),
        ({"topic": "orders", "timestamp": "5", "requests": "/r.csv"}, "give either topic and timestamp"),
        ({"topic": "orders", "timestamp": "5", "partition": -1}, "-1 is less than the minimum of 0"),
        ({"requests": "requests.csv"}, "does not match"),
    ],
)
def test_a_lookup_that_asks_nothing_sensible_is_refused_before_spark_starts(
    airflow: AirflowHome, conf: dict[str, object], complaint: str
) -> None:
    ended = airflow.test_dag("coldlog_lookup", {"COLDLOG_RETRIES": "3"}, conf=conf)
    assert complaint in ended.log, ended.log
    assert "Spark-Submit cmd" not in ended.log, ended.log
    assert ended.exit_code != 0, ended.log


def test_a_failing_task_is_tried_again_then_fails_its_run_and_those_behind_it_do_not_start(
    airflow: AirflowHome, warehouse: Path, tmp_path: Path
) -> None:
    before = versions(warehouse)
    variables = {
        "AIRFLOW_VAR_COLDLOG_SETTINGS": json.dumps({"archive.uri": str(tmp_path / "nowhere")}),
        # The Variable wins over the environment; the sample archive is a good one.
        "COLDLOG_SETTINGS": "{}",
        "COLDLOG_RETRIES": "1",
        "COLDLOG_RETRY_DELAY_SECONDS": "1",
    }
    ended = airflow.test_dag("coldlog_pipeline", variables)
    assert ended.exit_code != 0, ended.log
    assert f"no archive at {tmp_path / 'nowhere'}" in ended.log, ended.log
    assert "new_state=up_for_retry" in ended.log, ended.log
    state, tries = airflow.last_run("coldlog_pipeline")
    assert state == "failed"
    assert [each for each in tries if each.task == "scan_segments"] == [
        Try(task="scan_segments", number=1, state="failed"),
        Try(task="scan_segments", number=2, state="failed"),
    ]
    assert {each.state for each in tries if each.task != "scan_segments"} == {"upstream_failed"}
    changed = {table for table, version in versions(warehouse).items() if before.get(table) != version}
    assert changed <= {"job_runs"}


def test_maintenance_runs_through_and_what_the_warehouse_answers_stays(airflow: AirflowHome, warehouse: Path) -> None:
    asked = [each for each in golden_queries() if (each["topic"], each["partition"]) not in WITHOUT_SEGMENTS][::50]
    answers = [answer_of(OffsetReader(str(warehouse)), query) for query in asked]
    ended = airflow.test_dag("coldlog_maintenance")
    assert ended.exit_code == 0, ended.log
    assert airflow.last_run("coldlog_maintenance") == ("success", successes("maintain_tables"))
    compacted = re.search(r"([0-9]+) files compacted to ([0-9]+)", ended.log.replace(",", ""))
    assert compacted is not None, ended.log
    assert int(compacted[1]) > int(compacted[2]), "several files became one"
    assert [answer_of(OffsetReader(str(warehouse)), query) for query in asked] == answers


def test_settings_that_are_wrong_whenever_they_are_tried_are_not_tried_again(
    airflow: AirflowHome, tmp_path: Path
) -> None:
    settings = json.dumps({"archive.url": str(tmp_path)})
    variables = {"AIRFLOW_VAR_COLDLOG_SETTINGS": settings, "COLDLOG_RETRIES": "3"}
    ended = airflow.test_dag("coldlog_maintenance", variables)
    assert ended.exit_code != 0, ended.log
    assert "unknown setting archive.url (--set): did you mean archive.uri?" in ended.log, ended.log
    assert "Spark-Submit cmd" not in ended.log, ended.log
    assert airflow.last_run("coldlog_maintenance") == (
        "failed",
        [Try(task="maintain_tables", number=1, state="failed")],
    )


def test_a_machine_without_coldlog_says_where_it_was_looked_for(airflow: AirflowHome, tmp_path: Path) -> None:
    ended = airflow.test_dag("coldlog_maintenance", {"COLDLOG_HOME": str(tmp_path)})
    assert f"no coldlog at {tmp_path} on this machine" in ended.log, ended.log
    assert airflow.last_run("coldlog_maintenance")[0] == "failed"
