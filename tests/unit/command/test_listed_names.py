"""Test what listings say of topics and partitions that are not there, and of logs with holes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import write_deltalake

from coldlog.command.main import main
from coldlog.runtime.installation import COMMAND
from coldlog.tables.definitions.job_runs import JOB_RUNS


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["partitions", "orderz"], f"the topic 'orderz': did you mean orders? `{COMMAND} topics` lists all"),
        (["topics", "ORDERS"], f"the topic 'ORDERS': did you mean orders? `{COMMAND} topics` lists all"),
        (["segments", "nowhere"], f"the topic 'nowhere'; `{COMMAND} topics` lists all"),
        (["topics", "order"], f"the topic 'order': did you mean orders? `{COMMAND} topics` lists all"),
        (["segments", "orders", "-p", "7"], f"partition 7 of topic 'orders'; `{COMMAND} partitions orders` lists all"),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_a_name_that_is_not_there_is_wrong_and_the_nearest_is_named(
    command: list[str], told: str, form: list[str], warehouse: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *form, "-w", warehouse]) == 2
    printed = capsys.readouterr()
    assert printed.err == f"coldlog {command[0]}: the warehouse {warehouse} does not know {told}\n"
    lines = printed.out.splitlines()
    assert [line.split(",")[0] for line in lines] == (["topic"] if form == ["--csv"] else [])


@pytest.mark.parametrize("command", ["segments", "partitions"])
def test_a_partition_that_no_topic_has_is_wrong(
    command: str, warehouse: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "-p", "7", "--json", "-w", warehouse]) == 2
    told = f"no topic of the warehouse {warehouse} has a partition 7; `{COMMAND} partitions` lists all"
    assert capsys.readouterr() == ("", f"coldlog {command}: {told}\n")


def test_a_kind_of_problem_that_is_none_is_wrong(warehouse: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["problems", "--kind", "orphans", "-w", warehouse]) == 2
    assert capsys.readouterr().err == "coldlog problems: --kind orphans: there is no such kind; did you mean orphan?\n"


@pytest.mark.parametrize(("asked", "near"), [("run_pipelin", "run_pipeline"), ("SERVE", "serve"), ("lokup", "lookup")])
def test_an_unknown_command_is_told_with_the_nearest_one(
    asked: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([asked]) == 2
    told = f"coldlog: unknown command {asked!r}; did you mean {near}? coldlog --help lists all\n"
    assert capsys.readouterr() == ("", told)


def test_a_job_and_a_setting_that_are_none_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_deltalake(tmp_path / JOB_RUNS.name, JOB_RUNS.arrow_schema.empty_table())
    for asked, near in (("run_pipelin", "run_pipeline"), ("maintain", "maintain_tables")):
        assert main(["runs", "--job", asked, "-w", str(tmp_path)]) == 2
        told = f"--job {asked}: there is no such job; did you mean {near}?"
        assert capsys.readouterr().err == f"coldlog runs: {told}\n"
    assert main(["runs", "--job", "run_pipeline", "--json", "-w", str(tmp_path)]) == 0
    assert main(["config", "show", "archive.url"]) == 2
    told = f"no setting begins with archive.url: did you mean archive.uri? `{COMMAND} config show` lists all"
    assert capsys.readouterr() == ("", f"coldlog config: {told}\n")


def test_a_known_topic_may_have_nothing_to_list(warehouse: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["partitions", "payments"], ["segments", "orders", "--status", "quarantined"]):
        assert main([*command, "--json", "-w", warehouse]) == 0
        assert capsys.readouterr() == ("", "")


def test_partitions_count_the_holes_that_served_logs_have(warehouse: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partitions", "--json", "-w", warehouse]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["partition"], row["gap_count"], row["hole_count"]) for row in rows] == [(0, 0, 2), (1, 0, 0)]
    assert main(["partitions", "-w", warehouse]) == 0
    headers, _, first, second = capsys.readouterr().out.splitlines()
    assert headers.split()[-2:] == ["gaps", "holes"]
    assert (first.split()[-2:], second.split()[-2:]) == (["0", "2"], ["0", "0"])


def test_segments_say_which_offsets_their_damaged_places_lost(
    warehouse: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["segments", "orders", "-w", warehouse]) == 0
    _, _, first, *others = capsys.readouterr().out.splitlines()
    assert first.split()[-3:] == ["0..9", "3..4,", "8..9"]
    assert [row.split()[3:] for row in others] == [["0..9"], []]
