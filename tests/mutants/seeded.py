"""Make mutants by seed in the rooms that tests without Spark reach, and run the tests that reach each.

The order of the mutants depends on the seed and on the changed lines alone. A mutant is tried with the tests that call
its function, those of its own room first, up to `MAX_TEST_S` of tests. It is killed when one fails, or when they take
far longer than they did; it survives when all pass. Survivors are named in survivors.toml with the reason why they may,
and any other fails the run. There are also the tests of modules that work in other processes, where calls are not
traced, and the mutants that only a test with a server or Spark kills, each with the test that was seen to kill it. The
latter are tried on request.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mutants.forked_pytest import run_files, run_tests
from mutants.operators import Mutant, function_spans, is_compiled, list_mutants
from mutants.reach import ReachRecorder, callers_of_compiled, compiled_with
from mutants.shadow import REPOSITORY, SHADOW, ShadowTree

ROOMS = ("formats", "index", "model", "tiering/rules", "lookups", "replay")
OUTCOMES = ("killed", "timeout", "survived", "unreached", "elsewhere")
SURVIVORS = Path(__file__).parent / "survivors.toml"
REACH = SHADOW / "reach.jsonl"
MAX_TEST_S = 60.0
_SLOWEST_TEST_S = 30.0
_TIERS = ("tests/unit", "tests/sweep", "tests/spark")
_SKIPPED_FILES = ("test_deployment.py", "test_kafka_client.py", "test_mutants.py", "test_validate.py")
_SERVERS = ("spark", "s3", "moto", "bucket")
Named = tuple[str, str, str]
"""Function, old line and new line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededResult:
    """What became of a mutant: killed, timeout, survived, unreached by any quick test, or elsewhere: not tried, because
    a slow test was seen to kill it."""

    mutant: Mutant
    outcome: str
    killer: str
    test_count: int
    cpu_s: float

    @property
    def is_killed(self) -> bool:
        """Some test noticed it."""
        return self.outcome in ("killed", "timeout")

    def as_json(self) -> str:
        """One line of the results."""
        return json.dumps(asdict(self))


def pool(rooms: Sequence[str] = ROOMS) -> list[Mutant]:
    """All mutants of the rooms' modules, those that import Spark left out."""
    mutants = []
    for path, text in library_sources(rooms).items():
        if "pyspark" not in text:
            mutants.extend(list_mutants(path, text))
    return mutants


def library_sources(rooms: Sequence[str]) -> dict[str, str]:
    """The text of each module, by its path in the repository."""
    files = [file for room in rooms for file in sorted((REPOSITORY / "lib" / "coldlog" / room).rglob("*.py"))]
    return {str(file.relative_to(REPOSITORY)): file.read_text(encoding="utf-8") for file in files}


class QuickTests:
    """A pytest plugin that leaves the tests that need no Spark and no server."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Filter."""
        items[:] = [each for each in items if not self._needs_a_server(each)]

    def _needs_a_server(self, item: pytest.Item) -> bool:
        names: Sequence[str] = getattr(item, "fixturenames", ())
        return any(each in name for name in names for each in _SERVERS)

    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> None:
        """Leave out a test that asks for Spark or a server while it runs."""
        if any(each in fixturedef.argname for each in _SERVERS):
            pytest.skip("needs a server")


def record_reach(tree: ShadowTree) -> None:
    """Run all quick tests once and write which functions each calls; what fails while it is traced is left out."""
    REACH.unlink(missing_ok=True)
    recorder = ReachRecorder(library=str(tree.root / "lib"), output=REACH)
    skipped = [f"--ignore-glob=*{name}" for name in _SKIPPED_FILES]
    run = run_files([*_TIERS, *skipped], timeout_s=3600, plugins=[QuickTests(), recorder])
    (SHADOW / "reach.log").write_text(run.output, encoding="utf-8")
    if run.exit_code not in (0, 1):
        raise RuntimeError(f"the tests did not run: {SHADOW / 'reach.log'}")


def run_tests_of_processes() -> None:
    """Run them once without a mutant: they pass, and the sample archives that they need are indexed by the library as
    it is."""
    run = run_tests([each for files in files_of_processes().values() for each in files], timeout_s=1800)
    if run.exit_code != 0:
        raise RuntimeError(f"tests fail without any mutant:\n{run.output}")


@dataclass(slots=True)
class Reach:
    """Which tests call which functions, and how long they take."""

    sources: Mapping[str, str]
    seconds: dict[str, float] = field(default_factory=dict)
    _tests_of: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    _callers_of_compiled: dict[str, set[str]] = field(default_factory=dict)
    _compiled_closure: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, tree: ShadowTree) -> Reach:
        """The recorded one."""
        sources = library_sources((".",))
        reach = cls(sources=sources)
        starts = {path: _function_of_line(text) for path, text in sources.items()}
        with REACH.open(encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                if line["seconds"] > _SLOWEST_TEST_S:
                    continue
                reach.seconds[line["test"]] = line["seconds"]
                for file, first_line in line["functions"]:
                    path = str(Path(file).relative_to(tree.root))
                    function = starts.get(path, {}).get(first_line)
                    if function is not None:
                        reach._tests_of.setdefault((path, function), set()).add(line["test"])
        reach._callers_of_compiled = callers_of_compiled(sources)
        reach._compiled_closure = _closure_of_compiled(sources)
        return reach

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Those that may notice the mutant: the tests of its own room first, of these the quickest."""
        if files := files_of_processes().get(mutant.path):
            return files
        if callers := self._callers_of_compiled.get(mutant.function):
            found = self._union(lambda path, function: function in callers)
        elif mutant.function:
            found = self._tests_of.get((mutant.path, mutant.function), set())
        else:
            users = self._users_of(mutant.path)
            found = self._union(lambda path, function: path == mutant.path)
            found = found or self._union(lambda path, function: path in users)
        room = Path(mutant.path).parent.name
        ordered = sorted(found, key=lambda each: (f"/{room}/" not in each, self.seconds[each], each))
        return self._within_limit(ordered)

    def stale_kernels(self, mutant: Mutant) -> frozenset[str]:
        """The compiled functions that may hold what the mutant changes; `*` means all."""
        if mutant.function in self._callers_of_compiled:
            return compiled_with(mutant.function, self.sources)
        # A constant may be compiled into whatever reads it.
        return frozenset({"*"} if not mutant.function and mutant.path in self._compiled_closure else ())

    def _union(self, is_meant: object) -> set[str]:
        assert callable(is_meant)
        return {test for key, tests in self._tests_of.items() if is_meant(*key) for test in tests}

    def _users_of(self, path: str) -> set[str]:
        module = _module_name(path)
        return {each for each, text in self.sources.items() if module in _imported_modules(text)}

    def _within_limit(self, tests: list[str]) -> list[str]:
        total = 0.0
        chosen: list[str] = []
        for test in tests:
            total += self.seconds[test]
            if total > MAX_TEST_S and chosen:
                break
            chosen.append(test)
        return chosen


def run_seeded(
    tree: ShadowTree,
    reach: Reach,
    mutants: Sequence[Mutant],
    *,
    cpu_s: float,
    output: Path,
    keeps_killed: bool,
    tries_elsewhere: bool,
) -> list[SeededResult]:
    """Try as many of the mutants as that much CPU time allows; results go to `output` as they come. With
    `keeps_killed`, what `output` says was killed, or has survived with a reason, is not tried again."""
    explained = explained_survivors()
    known = {each.mutant.key: each for each in read_results(output)} if keeps_killed else {}
    results, spent = [], 0.0
    with output.with_suffix(".new").open("w", encoding="utf-8") as file:
        for mutant in mutants:
            if spent > cpu_s:
                break
            result = known.get(mutant.key)
            if result is None or not (result.is_killed or as_named(mutant) in explained):
                result = try_mutant(tree, reach, mutant, tries_elsewhere=tries_elsewhere)
                spent += result.cpu_s
                print(f"{result.outcome:9} {result.cpu_s:6.1f} s  {mutant.function}: {mutant.new_line}", flush=True)
            results.append(result)
            file.write(result.as_json() + "\n")
            file.flush()
    output.with_suffix(".new").rename(output)
    return results


def read_results(path: Path) -> list[SeededResult]:
    """Those of an earlier run, also of one that did not come to its end."""
    results = []
    for file in (path, path.with_suffix(".new")):
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            fields = json.loads(line)
            results.append(SeededResult(**{**fields, "mutant": Mutant(**fields["mutant"])}))
    return results


def try_mutant(tree: ShadowTree, reach: Reach, mutant: Mutant, *, tries_elsewhere: bool) -> SeededResult:
    """Run the tests that may notice one mutant."""
    slow = killed_elsewhere().get(as_named(mutant))
    if slow is not None and not tries_elsewhere:
        return SeededResult(mutant=mutant, outcome="elsewhere", killer=slow, test_count=0, cpu_s=0)
    tests = reach.tests_of(mutant) if slow is None else [slow]
    if not tests:
        return SeededResult(mutant=mutant, outcome="unreached", killer="", test_count=0, cpu_s=0)
    source = (REPOSITORY / mutant.path).read_bytes()
    patience_s = 60 + 6 * sum(reach.seconds.get(each, _SLOWEST_TEST_S) for each in tests)
    with tree.holding(mutant.path, mutant.apply(source)):
        run = run_tests(tests, timeout_s=patience_s, stale_kernels=reach.stale_kernels(mutant))
    if run.exit_code in (5, 70):
        raise RuntimeError(f"no test ran: {mutant}\n{run.output}")
    outcome = {0: "survived", None: "timeout"}.get(run.exit_code, "killed")
    killer = next((line for line in run.output.splitlines() if "Error" in line or "FAILED" in line), "")
    return SeededResult(
        mutant=mutant, outcome=outcome, killer=killer[-300:] if outcome == "killed" else "", test_count=len(tests),
        cpu_s=round(run.cpu_s, 2),
    )  # fmt: skip


def as_named(mutant: Mutant) -> Named:
    """How survivors.toml names it."""
    return mutant.function, mutant.old_line, mutant.new_line


def explained_survivors() -> dict[Named, str]:
    """The reason why they may survive."""
    return {(each["function"], each["old"], each["new"]): each["why"] for each in _read_survivors()["survivor"]}


def killed_elsewhere() -> dict[Named, str]:
    """The slow test that kills them."""
    return {(each["function"], each["old"], each["new"]): each["test"] for each in _read_survivors()["elsewhere"]}


def files_of_processes() -> dict[str, list[str]]:
    """The files with the tests of modules that work in other processes, by the path of the module."""
    return {each["path"]: each["tests"] for each in _read_survivors()["processes"]}


@cache
def _read_survivors() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(SURVIVORS.read_text(encoding="utf-8"))


def _function_of_line(text: str) -> dict[int, str]:
    """The function or method that each line belongs to."""
    spans = function_spans(ast.parse(text))
    return {line: name for name, first, last, _ in spans for line in range(first, last + 1)}


def _module_name(path: str) -> str:
    return path.removeprefix("lib/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _imported_modules(text: str) -> set[str]:
    return {each.module for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ImportFrom) and each.module}


def _closure_of_compiled(sources: Mapping[str, str]) -> set[str]:
    """Modules with compiled functions, and those that they import, directly or not."""
    paths = {_module_name(path): path for path in sources}
    waiting = [
        path for path, text in sources.items() if any(is_compiled(node) for *_, node in function_spans(ast.parse(text)))
    ]
    closure: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path not in closure:
            closure.add(path)
            waiting.extend(paths[each] for each in _imported_modules(sources[path]) if each in paths)
    return closure


def by_room(results: Sequence[SeededResult]) -> Iterator[str]:
    """A line of counts for each room."""
    for room in ROOMS:
        outcomes = [each.outcome for each in results if each.mutant.path.startswith(f"lib/coldlog/{room}/")]
        counts = {outcome: outcomes.count(outcome) for outcome in OUTCOMES}
        yield f"{room}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
