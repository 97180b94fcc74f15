"""Test that the mutants of tests/mutants still apply, and test the functions that make mutants."""

from __future__ import annotations

import ast

import pytest

from mutants.by_hand import HandMutant, read_hand_mutants
from mutants.operators import function_spans, iter_changes, list_mutants, parses
from mutants.reach import callers_of_compiled
from mutants.seeded import (
    ROOMS,
    as_named,
    explained_survivors,
    files_of_processes,
    killed_elsewhere,
    library_sources,
)
from mutants.shadow import REPOSITORY

HAND_MUTANTS = read_hand_mutants()


@pytest.mark.parametrize("mutant", HAND_MUTANTS, ids=lambda each: f"{each.function}: {each.mistake}")
def test_hand_made_mutant_applies_and_names_an_existing_test(mutant: HandMutant) -> None:
    located = mutant.locate()
    assert mutant.new != mutant.old
    assert located.path.startswith("lib/coldlog/")
    assert mutant.test_id().startswith("tests/")


def test_hand_made_mutant_whose_text_does_not_occur_exactly_once_is_refused() -> None:
    entry = {"function": "by_hand.f", "new": "x", "test": "t", "mistake": "m"}
    for function, old in (("ids.uuid_text", "no such text"), ("ids.no_such_function", "return"), ("ids", "class ")):
        with pytest.raises(LookupError, match="not once"):
            HandMutant(**{**entry, "function": function, "old": old}).locate()
    with pytest.raises(LookupError, match="found in 0 files"):
        HandMutant(**entry, old="y").test_id()


def test_there_are_enough_hand_made_mutants_without_duplicates() -> None:
    assert len({(each.function, each.old, each.new) for each in HAND_MUTANTS}) == len(HAND_MUTANTS) >= 60


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("a is not b", {"a is b"}),
        ("a not in b", {"a in b"}),
        ("(a) + (b)", {"(a) - (b)"}),
        ("a and b and c", {"a or b and c", "a and b or c"}),
        ("not a", {"(a)"}),
        ("x = 3", {"x = 4", "x = 2"}),
        ("x = True", {"x = False"}),
        ("min(a, b)", {"max(a, b)", "pass"}),
        ("a += b", {"a -= b", "pass"}),
        ("while a: break", {"while not (a): break", "while a: continue"}),
        ("def f():\n    return a", {"return None"}),
        ("@njit\ndef f():\n    return a", set()),
        ("def f():\n    if a: raise b", {"if not (a): raise b", "if a: pass"}),
        ("x: int = y[1] if z else 'é'", {"x: int = y[2] if z else 'é'", "x: int = y[0] if z else 'é'",
                                         "x: int = y[1] if not (z) else 'é'"}),
        ('f"{a + 1}"', set()),
        ('"""a < 1"""', set()),
    ],
)  # fmt: skip
def test_mutants_of_a_line(text: str, expected: set[str]) -> None:
    assert {each.new_line for each in list_mutants("m.py", text)} == expected


def test_mutant_changes_only_its_position_and_keeps_its_rank_if_other_functions_change() -> None:
    text = "# ä\ndef f(a):\n    return a + 1\n"
    for each in list_mutants("m.py", text):
        changed = each.apply(text.encode()).decode()
        ast.parse(changed)
        assert changed.splitlines()[:2] == text.splitlines()[:2]
        assert changed.splitlines()[2].strip() == each.new_line
    moved = list_mutants("other.py", f"def g():\n    return 7\n{text}")
    ranks = {each.rank(22) for each in list_mutants("m.py", text)}
    assert len(ranks) == 4
    assert ranks <= {each.rank(22) for each in moved}
    assert not ranks & {each.rank(23) for each in moved}


def test_compiled_functions_are_reached_through_their_python_callers() -> None:
    callers = callers_of_compiled(library_sources(("formats", "index")))
    assert callers["_find_stairs"] == {"find_stairs"}
    assert "find_stairs" in callers["read_signed"]
    assert callers["_call"] == callers["checksum"] == {*callers["_walk"], "are_indexed_batches"}
    assert all(callers.values())


def test_mutants_that_may_survive_or_are_killed_elsewhere_can_be_made() -> None:
    named = {*explained_survivors(), *killed_elsewhere()}
    functions = {function for function, _, _ in named}
    sources = library_sources(ROOMS)
    spans = {path: {name for name, *_ in function_spans(ast.parse(text))} for path, text in sources.items()}
    made = {
        as_named(each)
        for path, text in sources.items()
        if functions & (spans[path] | {""})
        for each in iter_changes(path, text, only=functions)
        if as_named(each) in named and parses(each.apply(text.encode()))
    }
    assert named <= made


def test_tests_that_kill_elsewhere_and_files_of_processes_exist() -> None:
    for test in killed_elsewhere().values():
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (REPOSITORY / file).read_text(encoding="utf-8")
    for path, tests in files_of_processes().items():
        assert path in library_sources(ROOMS)
        assert all((REPOSITORY / each).is_file() for each in tests)
