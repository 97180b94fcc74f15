"""Find out which functions of the library each test calls.

A pytest plugin that traces calls, without lines. What numba compiled is not seen: `callers_of_compiled` names the
Python functions through which it is called.
"""

from __future__ import annotations

import ast
import json
import sys
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import pytest

from mutants.operators import function_spans, is_compiled


@dataclass(slots=True, eq=False)
class ReachRecorder:
    """Writes a JSON line for each test that passed: its id, its seconds, the functions that it called."""

    library: str
    output: Path
    _called: set[CodeType] = field(default_factory=set)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Trace the test with its fixtures."""
        self._called.clear()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that passed."""
        if report.when == "call" and report.passed:
            functions = sorted({(code.co_filename, code.co_firstlineno) for code in self._called.copy()})
            line = {"test": report.nodeid, "seconds": report.duration, "functions": functions}
            with self.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code not in self._called and code.co_filename.startswith(self.library):
            self._called.add(code)


def callers_of_compiled(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Of each compiled function of these files, by its name: the Python functions that call it, directly or through
    another compiled one."""
    compiled, mentions = _read_functions(sources)
    return {name: _callers(name, compiled, mentions)[0] for name in compiled}


def compiled_with(name: str, sources: Mapping[str, str]) -> frozenset[str]:
    """A compiled function, and those into which numba compiles it too."""
    compiled, mentions = _read_functions(sources)
    return frozenset({name} | _callers(name, compiled, mentions)[1])


def _read_functions(sources: Mapping[str, str]) -> tuple[set[str], dict[str, set[str]]]:
    """The compiled functions, and the names that each function mentions."""
    compiled: set[str] = set()
    mentions: dict[str, set[str]] = {}
    for text in sources.values():
        for name, _, _, node in function_spans(ast.parse(text)):
            names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            mentions.setdefault(name, set()).update(names)
            if is_compiled(node) or _is_intrinsic(node):
                compiled.add(name)
    return compiled, mentions


def _is_intrinsic(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether numba calls the function to generate code of its callers."""
    return any(ast.unparse(each) == "intrinsic" for each in node.decorator_list)


def _callers(name: str, compiled: set[str], mentions: Mapping[str, set[str]]) -> tuple[set[str], set[str]]:
    """Python functions and compiled ones."""
    found: tuple[set[str], set[str]] = set(), set()
    waiting, seen = [name], {name}
    while waiting:
        called = waiting.pop()
        for caller in (each for each, names in mentions.items() if called in names and each not in seen):
            seen.add(caller)
            found[caller in compiled].add(caller)
            if caller in compiled:
                waiting.append(caller)
    return found
