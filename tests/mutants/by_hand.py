"""Mutants made by hand: one reasonable mistake each in the rooms that a generator reaches badly.

by_hand.toml names for each the function (`module.function` or `module.Class.method`; a constant's module alone), the
old and the new text, and the test that must fail. Functions and tests are looked for by name, so that both survive a
move to another folder; a text that is not found exactly once is an error.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mutants.forked_pytest import TestRun, run_tests
from mutants.operators import Mutant, function_spans
from mutants.shadow import REPOSITORY, ShadowTree

_PATIENCE_S = 600.0
_SERVERS = {"broker", "cluster", "airflow"}
BY_HAND = Path(__file__).parent / "by_hand.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandMutant:
    """One entry of by_hand.toml."""

    function: str
    old: str
    new: str
    test: str
    mistake: str

    def locate(self) -> Mutant:
        """The place in the file; raises LookupError where the entry no longer applies, SyntaxError where it makes no
        Python."""
        module, _, name = self.function.partition(".")
        found = [place for path in _modules(module) for place in self._places(path, name)]
        if len(found) != 1:
            raise LookupError(f"{self.function}: found {len(found)} times, not once: {self.old!r}")
        ast.parse(found[0].apply((REPOSITORY / found[0].path).read_bytes()))
        return found[0]

    def _places(self, path: Path, name: str) -> list[Mutant]:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        spans = [(first, last) for each, first, last, _ in function_spans(ast.parse(text)) if each == name]
        places = []
        for first, last in spans if name else [(1, len(lines))]:
            before, within = "".join(lines[: first - 1]), "".join(lines[first - 1 : last])
            for part in range(within.count(self.old)):
                start = len(before) + _nth(within, self.old, part)
                places.append(_mutant(path, name, text, start, start + len(self.old), self.new))
        return places

    def test_id(self) -> str:
        """The test for pytest; raises LookupError where there is none or more than one of the name."""
        name, bracket, parameters = self.test.partition("[")
        files = _test_files().get(name, [])
        if len(files) != 1:
            raise LookupError(f"{name}: found in {len(files)} files, not in one: {files}")
        return f"{files[0]}::{name}{bracket}{parameters}"


def read_hand_mutants() -> list[HandMutant]:
    """All entries."""
    entries = tomllib.loads(BY_HAND.read_text(encoding="utf-8"))["mutant"]
    return [HandMutant(**each) for each in entries]


def run_hand_mutants(tree: ShadowTree, mutants: Sequence[HandMutant]) -> Iterator[tuple[HandMutant, TestRun]]:
    """Each with the run of its test, which must have failed; first the tests are run without any, and must not."""
    names = list(dict.fromkeys(each.test_id() for each in mutants))
    whole = run_tests(names, timeout_s=_PATIENCE_S * len(names))
    if whole.exit_code != 0:
        raise RuntimeError(f"tests fail without any mutant:\n{whole.output}")
    for each in mutants:
        located = each.locate()
        source = (REPOSITORY / located.path).read_bytes()
        with tree.holding(located.path, located.apply(source)):
            stale = frozenset({"*"} if b"njit" in source else ())
            yield each, run_tests([each.test_id()], timeout_s=_PATIENCE_S, stale_kernels=stale)


def _mutant(path: Path, function: str, text: str, start: int, end: int, new: str) -> Mutant:
    first_line = text.count("\n", 0, start)
    return Mutant(
        path=str(path.relative_to(REPOSITORY)), function=function, line=first_line + 1,
        start=len(text[:start].encode()), end=len(text[:end].encode()), new=new,
        old_line=text[start:end], new_line=new,
    )  # fmt: skip


def _nth(text: str, part: str, number: int) -> int:
    at = text.index(part)
    for _ in range(number):
        at = text.index(part, at + len(part))
    return at


@cache
def _modules(name: str) -> list[Path]:
    return sorted((REPOSITORY / "lib" / "coldlog").rglob(f"{name}.py"))


@cache
def _test_files() -> dict[str, list[str]]:
    """The files that `make test` runs, by the names of the test functions in them."""
    found: dict[str, list[str]] = {}
    files = (each for each in sorted((REPOSITORY / "tests").rglob("test_*.py")) if not _SERVERS & {*each.parts})
    for file in files:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.setdefault(node.name, []).append(str(file.relative_to(REPOSITORY)))
    return found
