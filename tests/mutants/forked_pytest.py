"""Run tests in a child of a warm process: one that has imported what the tests need, but nothing of the library.

A start of pytest with pyspark, pandas and numba takes five seconds, a child of this process half a second. Kernels that
a mutant does not change are taken from numba's cache: it tells kernels apart by the file's modification time, which a
child of this process does not look at, and the mutant's own kernels and their callers are left out of the cache.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numba
import pytest
from numba.core import caching

import golden_fixtures
from mutants.shadow import SHADOW, ShadowTree

_PR_SET_PDEATHSIG = 1
_KERNELS = SHADOW / "kernels"
_WARM = (
    "hypothesis", "hypothesis.strategies", "numpy", "numba", "pandas", "pyarrow", "pyarrow.compute", "pyarrow.dataset",
    "pyarrow.fs", "pyarrow.parquet", "pyspark.sql", "pyspark.sql.functions", "pyspark.sql.datasource", "deltalake",
    "crc32c", "cramjam", "psutil", "botocore.session", "cryptography.hazmat.primitives.ciphers.aead", "pytest_timeout",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """How a child ended: pytest's exit code, or None if it was killed for its time; `output` is what it printed."""

    exit_code: int | None
    cpu_s: float
    output: str


def warm_up(tree: ShadowTree) -> None:
    """Import what tests need and let the library be found in `tree`.

    The indexed sample archives of build/worlds are those of the library as it is: a mutant builds none of its own.
    """
    golden_fixtures._folder_of_this_code()
    os.chdir(tree.root)
    os.environ["PYTHONPATH"] = os.pathsep.join(tree.python_path)
    os.environ["HYPOTHESIS_PROFILE"] = "unshrunk"
    sys.path[:0] = tree.python_path
    for name in _WARM:
        importlib.import_module(name)
    loaded = [each for each in sys.modules if each.partition(".")[0] == "coldlog"]
    if loaded:
        raise RuntimeError(f"loaded before a mutant was made: {loaded}")


@dataclass(slots=True, eq=False)
class SelectedTests:
    """A pytest plugin that leaves the named tests, in their order; a name without parameters means all of them, the
    name of a file all of its tests."""

    names: Sequence[str]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Order and filter."""
        places = {name: place for place, name in enumerate(self.names)}
        chosen = []
        for item in items:
            ids = (item.nodeid, item.nodeid.partition("[")[0], item.nodeid.partition("::")[0])
            chosen += [(places[each], item) for each in ids if each in places][:1]
        items[:] = [item for _, item in sorted(chosen, key=lambda pair: pair[0])]


def run_tests(
    names: Sequence[str],
    *,
    timeout_s: float,
    stale_kernels: frozenset[str] = frozenset(),
    plugins: Iterable[object] = (),
) -> TestRun:
    """Run named tests until one fails. Kernels of the names `stale_kernels` are compiled anew; `*` means all."""
    files = list(dict.fromkeys(each.partition("::")[0] for each in names))
    return run_files(
        [*files, "-x"], timeout_s=timeout_s, stale_kernels=stale_kernels, plugins=[SelectedTests(names), *plugins]
    )


def run_files(
    arguments: Sequence[str],
    *,
    timeout_s: float,
    stale_kernels: frozenset[str] = frozenset(),
    plugins: Iterable[object] = (),
) -> TestRun:
    """Run pytest with these arguments."""
    scratch = Path(tempfile.mkdtemp(dir=SHADOW))
    try:
        cache = _KERNELS if not stale_kernels else _link_kernels(scratch / "kernels", stale_kernels)
        child = os.fork()
        if child == 0:
            _be_pytest(scratch, cache, arguments, list(plugins))
        exit_code, cpu_s = _wait_for(child, timeout_s)
        output = (scratch / "output").read_text(encoding="utf-8", errors="replace")
        return TestRun(exit_code=exit_code, cpu_s=cpu_s, output=output)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _link_kernels(target: Path, stale: frozenset[str]) -> Path:
    """A copy of the cache without those kernels; files are named module.kernel-line.*."""
    target.mkdir()
    if "*" not in stale:
        for file in _KERNELS.glob("*/*.*"):
            if file.name.partition(".")[2].rpartition("-")[0] not in stale:
                (target / file.parent.name).mkdir(exist_ok=True)
                os.link(file, target / file.parent.name / file.name)
    return target


def _be_pytest(scratch: Path, cache: Path, arguments: Sequence[str], plugins: list[object]) -> None:
    code = 70
    try:
        os.setsid()
        if sys.platform == "linux":
            # The child ends with its parent, in whatever way that ends.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        output = os.open(scratch / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["NUMBA_CACHE_DIR"] = str(cache)
        numba.config.reload_config()  # type: ignore[no-untyped-call]  # numba ships no types for it
        caching._SourceFileBackedLocatorMixin.get_source_stamp = lambda _: "any"  # type: ignore[method-assign]
        # Processes that a test starts look at modification times.
        os.environ["NUMBA_CACHE_DIR"] = str(scratch / "numba")
        quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--assert=plain", "--no-header", "--tb=line"]
        code = int(pytest.main([*arguments, *quiet, f"--basetemp={scratch / 'tests'}"], plugins=plugins))
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait_for(child: int, timeout_s: float) -> tuple[int | None, float]:
    """(exit code, CPU seconds); also ends what the child left running."""
    deadline = time.monotonic() + timeout_s
    exit_code = None
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            exit_code = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            _, _, usage = os.wait4(child, 0)
            break
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return exit_code, usage.ru_utime + usage.ru_stime
