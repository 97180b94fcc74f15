"""Suggest what can follow on a command line: commands, options, their choices, settings, topics.

    coldlog __complete words WORD...             the words after `coldlog`; the last one is being typed
    coldlog __complete line LINE [BREAKS]        the line up to the cursor, as bash has it

Prints one suggestion a line, and nothing where names of files are expected. With BREAKS, the characters at which bash
divides words, a suggestion begins after the last of them. Topics are those of the warehouse that the line names by -w,
--set, --config or --env, else that of the settings.
"""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import PurePath

from coldlog.command.main import COMMANDS, JOBS, PROGRAMS, make_parser
from coldlog.command.shared.listings import prepare
from coldlog.command.shared.outputs import standard_output
from coldlog.command.shared.settings_options import add_settings_options
from coldlog.errors import UsageError
from coldlog.runtime.argument_parser import CommandParser
from coldlog.runtime.installation import JOBS as JOB_FOLDER
from coldlog.tables.table_rows import read_table

_SEVERAL_TOPICS = "topics"
"""The option with names that commas separate."""


def print_suggestions(arguments: Sequence[str]) -> int:
    """Print the suggestions for words or a line."""
    form, *given = arguments
    words = given if form == "words" else split_line(given[0])
    found = suggest(words)
    typed = words[-1] if words else ""
    breaks = re.escape("".join(given[1:2])) if form == "line" else ""
    kept = re.match(f".*[{breaks}]", typed) if breaks else None
    skipped = 0 if kept is None else kept.end()
    standard_output().writelines(f"{each[skipped:]}\n" for each in found)
    return 0


def split_line(line: str) -> list[str]:
    """Return the words after the command's name; the last is empty if a new one begins. A quote may still be open."""
    words: list[str] = []
    for end in ("", "\\", "'", '"'):
        try:
            words = shlex.split(line + end)
        except ValueError:
            continue
        break
    if not line or line[-1].isspace():
        words.append("")
    begin = next((number for number, word in enumerate(words) if PurePath(word).name == "coldlog"), 0)
    return words[begin + 1 :]


def suggest(words: Sequence[str]) -> list[str]:
    """Return what the last word can become."""
    if len(words) < 2:
        found: Iterable[str] = (*COMMANDS, *PROGRAMS, *JOBS)
    else:
        parser = _find_parser(words[0])
        found = () if parser is None else _candidates(parser, words[1:-1], words[-1])
    typed = words[-1] if words else ""
    return sorted({each for each in found if each.startswith(typed)})


def _find_parser(name: str) -> argparse.ArgumentParser | None:
    if name in COMMANDS:
        return make_parser(name, import_module(f"coldlog.command.{name}"))
    if name in PROGRAMS:
        made: argparse.ArgumentParser = import_module(PROGRAMS[name][0]).make_parser()
        return made
    script = JOB_FOLDER / f"{JOBS.get(name, (name,))[0]}.py"
    if not script.is_file():
        return None
    program = runpy.run_path(str(script))
    make = program.get("make_parser", partial(program["job_argument_parser"], str(script), ""))
    parser: argparse.ArgumentParser = make()
    return parser


def _candidates(parser: argparse.ArgumentParser, before: Sequence[str], typed: str) -> Iterable[str]:
    options = {name: action for action in parser._actions for name in action.option_strings}
    name, equals, _ = typed.partition("=")
    if equals and name in options:
        return [f"{name}={each}" for each in _values(options[name], before, typed.removeprefix(f"{name}="))]
    awaiting = options.get(before[-1]) if before else None
    if awaiting is not None and awaiting.nargs != 0:
        return _values(awaiting, before[:-1], typed)
    if typed.startswith("-"):
        return options
    places = [action for action in parser._actions if not action.option_strings]
    number = _count_places(options, before)
    return _values(places[number], before, typed) if number < len(places) else ()


def _count_places(options: dict[str, argparse.Action], before: Sequence[str]) -> int:
    """Count the words that are neither options nor their values."""
    count, is_value = 0, False
    for word in before:
        action = None if is_value else options.get(word)
        count += not is_value and not word.startswith("-")
        is_value = action is not None and action.nargs != 0
    return count


def _values(action: argparse.Action, before: Sequence[str], typed: str) -> Iterable[str]:
    if action.choices is not None:
        return map(str, action.choices)
    if action.dest == "set":
        return _assignments(typed)
    if action.dest == "topic":
        return _topics(before)
    if action.dest == _SEVERAL_TOPICS:
        others = typed[: typed.rfind(",") + 1]
        return [others + topic for topic in _topics(before)]
    if action.dest == "job":
        return [script.stem for script in JOB_FOLDER.glob("[a-z]*.py")]
    return ()


def _assignments(typed: str) -> Iterable[str]:
    """Return the settings, or the values of the one that is typed."""
    from coldlog.runtime.settings_sources import list_setting_keys

    name, equals, _ = typed.partition("=")
    keys = {each.key: each.annotation for each in list_setting_keys()}
    if not equals:
        return [f"{key}=" for key in keys]
    kind = keys.get(name)
    values = ["true", "false"] if kind is bool else []
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        values = [each.value for each in kind]
    return [f"{name}={value}" for value in values]


def _topics(before: Sequence[str]) -> Iterable[str]:
    """Return the topics of the warehouse that the line names; none if there is none."""
    from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA

    parser = CommandParser("coldlog", None)
    add_settings_options(parser)
    try:
        rows = read_table(prepare(parser.parse_known_args(before)[0]), PARTITION_METADATA, ("topic",))
    except UsageError:  # a setting that is not complete yet, or no tables at that place
        return ()
    return [row["topic"] for row in rows]
