"""conftest of tests/endpoint: `coldlog serve` as a program, over the sample."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from endpoint.support.client_table import COLLECTED, are_all, is_apart, write_page

_OUTCOMES = pytest.StashKey[dict[str, bool]]()
"""Whether a test passed, by its id."""
_ARE_ALL_CLIENTS_READ = "CLIENTS" in os.environ
_ROOT = Path(__file__).parents[2]
_STOP_S = 30


def pytest_configure(config: pytest.Config) -> None:
    """Let clients leave connections open: aiokafka closes its event loop before a connection with TLS has ended."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed (transport|<socket):ResourceWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests in `apart`, unless all clients are asked for."""
    own = [each for each in items if each.path.is_relative_to(Path(__file__).parent)]
    config.stash[COLLECTED], config.stash[_OUTCOMES] = own, {}
    if not _ARE_ALL_CLIENTS_READ:
        config.hook.pytest_deselected(items=[each for each in own if is_apart(each)])
        items[:] = [each for each in items if not is_apart(each)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note which tests passed."""
    report = yield
    outcomes = item.config.stash[_OUTCOMES]
    outcomes[item.nodeid] = outcomes.get(item.nodeid, True) and report.passed
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what the tests have shown into the page of clients."""
    collected = session.config.stash.get(COLLECTED, [])
    if _ARE_ALL_CLIENTS_READ and are_all(collected):
        outcomes = session.config.stash[_OUTCOMES]
        write_page(collected, outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A running program; `notes` is the file of what it says."""

    process: subprocess.Popen[bytes]
    port: int
    notes: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def said(self) -> str:
        return self.notes.read_text(encoding="utf-8")

    def end(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_S)


@contextmanager
def serving(
    notes: Path, warehouse: str, archive: Path | str, *assignments: str, config: Path | None = None
) -> Iterator[Endpoint]:
    """Start the program, and end it after the block. Warehouses are shared, so nothing is committed in them."""
    settings = [f"warehouse.uri={warehouse}", f"archive.uri={archive}", "serve.committed_offsets=memory", *assignments]
    command = [sys.executable, "-m", "coldlog.serve", "--listen", "127.0.0.1:0"]
    command += ["--config", str(config)] if config is not None else []
    command += [part for setting in settings for part in ("--set", setting)]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT / "lib")}
    with (
        notes.open("wb") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, cwd=_ROOT, env=environment) as process,
    ):
        try:
            yield Endpoint(process=process, port=_wait_for_port(process, notes), notes=notes)
        finally:
            process.kill()


def _wait_for_port(process: subprocess.Popen[bytes], notes: Path) -> int:
    while process.poll() is None:
        found = re.search(r"listening on \S+:(\d+);", notes.read_text(encoding="utf-8"))
        if found:
            return int(found[1])
        time.sleep(0.05)
    pytest.fail(f"coldlog serve ended: {notes.read_text(encoding='utf-8')}")


@pytest.fixture(scope="session")
def endpoint(golden_uri: str, golden_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The sample, served."""
    notes = tmp_path_factory.mktemp("endpoint") / "notes"
    with serving(notes, golden_uri, golden_archive) as running:
        yield running
