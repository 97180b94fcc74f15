"""Test what is suggested to a shell for a command line that is being typed."""

from __future__ import annotations

import pytest

from coldlog.command.main import main
from coldlog.command.suggestions import split_line, suggest


@pytest.mark.parametrize(
    ("line", "suggested"),
    [
        ("off", ["offsets"]),
        ("cat --gr", ["--grep"]),
        ("segments --status in", ["incomplete", "indexed"]),
        ("cat orders --isolation-level=read_c", ["--isolation-level=read_committed"]),
        ("completion ", ["bash", "fish", "zsh"]),
        ("lookup orders --set archive.u", ["archive.uri="]),
        ("run --set archive.layout=log", ["archive.layout=log_directories"]),
        ("run --set build.retry_q", ["build.retry_quarantined="]),
        ("run --set build.retry_quarantined=", ["build.retry_quarantined=false", "build.retry_quarantined=true"]),
        ("run --log-format ", ["json", "text"]),
        ("replay_topics --order t", ["tasks"]),
        ("reconcile --fail-on w", ["warning"]),
        ("serve --adv", ["--advertise"]),
        ("launch-options scan", ["scan_segments"]),
        ("run --config ", []),  # the shell offers files
        ("nonsense --", []),
        ("topics -w /nowhere ord", []),
    ],
)
def test_commands_options_choices_and_settings_are_suggested(line: str, suggested: list[str]) -> None:
    assert suggest(split_line(f"coldlog {line}")) == suggested


@pytest.mark.parametrize(
    "before",
    [
        "lookup -w '{place}'",
        "cat --warehouse={place}",
        "segments --status indexed --set warehouse.uri={place}",
        "topics --csv --config {place}/mine.toml",
        "fetch_records --set warehouse.uri={place} --topic",
    ],
)
def test_topics_are_those_of_the_warehouse_that_the_line_names(before: str, warehouse: str) -> None:
    with open(f"{warehouse}/mine.toml", "w", encoding="utf-8") as file:
        file.write('warehouse.uri = "."\n')
    line = f"coldlog {before.format(place=warehouse)} o"
    assert suggest(split_line(line)) == ["orders"]
    assert suggest(split_line(f"{line}rders ")) == [], "the place of a topic is taken"


def test_each_of_several_topics_is_completed(warehouse: str) -> None:
    words = ["replay", "--set", f"warehouse.uri={warehouse}", "--topics", "a,or"]
    assert suggest(words) == ["a,orders"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("FOO=1 /usr/bin/coldlog cat 'two words' ", ["cat", "two words", ""]),
        ("coldlog cat 'two wo", ["cat", "two wo"]),
        ('coldlog -w "/a b', ["-w", "/a b"]),
        ("coldlog -w /a\\ b\\", ["-w", "/a b\\"]),
        ("coldlog ", [""]),
    ],
)
def test_a_line_is_divided_as_the_shell_does_it(line: str, words: list[str]) -> None:
    assert split_line(line) == words


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["line", "coldlog cat orders --isolation-level=", "=:"], "read_committed\nread_uncommitted\n"),
        (["line", "coldlog run --set archive.layout=log", " =:"], "log_directories\n"),
        (["line", "coldlog run --set archive.la", " =:"], "archive.layout=\n"),
        (["words", "run", "--set", "archive.layout=log"], "archive.layout=log_directories\n"),
        (["words"], None),
    ],
)
def test_bash_gets_what_follows_the_place_where_it_divides_a_word(
    arguments: list[str], printed: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["__complete", *arguments]) == 0
    told = capsys.readouterr().out
    assert told == printed if printed is not None else "\nlookup\n" in told
