"""Test the command as a process: what it imports, and how it ends when its output does."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import termios
import time
from array import array
from pathlib import Path
from typing import IO

from coldlog.runtime.installation import COMMAND

ASKED = ["lookup", "orders", "2023-11-15T10:00Z"]
SLOW = {
    "aiohttp", "asyncio", "botocore", "Crypto", "cryptography", "delta", "fsspec", "kafka", "llvmlite", "numba",
    "pandas", "py4j", "pyspark", "s3fs",
}  # fmt: skip
"""Packages that take longer to import than a question to answer."""
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""As in a user's shell: without a buffer nothing is left to write at the end."""
PIPE_BYTES = 4096
MODULES = "import sys; from coldlog.command.main import main; main(sys.argv[1:]); print('\\n', *sys.modules)"


def _modules(*arguments: str) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", MODULES, *arguments], capture_output=True, text=True, check=True, timeout=100
    )
    return set(ran.stdout.splitlines()[-1].split())


def test_questions_import_neither_spark_nor_decoders_nor_clients(golden_uri: str) -> None:
    for asked in (ASKED, ["offsets", "orders", "-1"]):
        modules = _modules(*asked, "-w", golden_uri)
        assert "deltalake" in modules
        assert modules & SLOW == set()


def test_help_imports_no_table_reader() -> None:
    modules = _modules("--help")
    assert modules & (SLOW | {"argparse", "deltalake", "numpy", "pyarrow", "coldlog.runtime"}) == set()


def test_output_that_nobody_reads_or_that_is_full_ends_without_traceback(golden_uri: str) -> None:
    command = f"{sys.executable} -m coldlog {' '.join(ASKED)} -w '{golden_uri}'"
    ran = subprocess.run(
        [
            "bash",
            "-c",
            f"{command} | true; echo ${{PIPESTATUS[0]}}; {command} >/dev/full; echo $?; {command} >&-; echo $?",
        ],
        env=BUFFERED,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert ran.stdout.split() == ["141", "1", "1"]
    assert ran.stderr.splitlines() == [
        "coldlog lookup: the output cannot be written: No space left on device",
        "coldlog lookup: standard output is closed",
    ]


def test_words_are_utf8_and_output_is_readable_in_a_locale_of_ascii(golden_uri: str) -> None:
    ascii_only = BUFFERED | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "coldlog", "lookup", "größe", "0", "-w", golden_uri]
    ran = subprocess.run(command, env=ascii_only, capture_output=True, check=False, timeout=100)
    assert ran.returncode == 2
    told = ran.stderr.decode("ascii").replace("\\xf6", "ö").replace("\\xdf", "ß")
    assert told == (
        f"coldlog lookup: the warehouse {golden_uri} does not know the topic 'größe'; `{COMMAND} topics` lists all\n"
    )


def test_questions_are_answered_from_a_warehouse_that_may_only_be_read(golden_uri: str, tmp_path: Path) -> None:
    """Mounted read-only: root may write to a folder whatever its permissions."""
    questions = [
        (*ASKED, "-p", "0"),
        ("offsets", "orders", "latest-tiered"),
        ("topics",),
        ("segments", "orders"),
        ("cat", "orders", "-o", "2592", "-c", "1"),
        ("runs",),
    ]
    asked = "\n".join(shlex.join([sys.executable, "-m", "coldlog", *words, "-w", golden_uri]) for words in questions)
    folder = shlex.quote(golden_uri)
    script = (
        f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} || exit\n"
        f"set -e; ! touch {folder}/written 2>/dev/null\n{asked}"
    )
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    ran = subprocess.run(command, cwd=tmp_path, env=BUFFERED, capture_output=True, text=True, check=False, timeout=200)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert " 2592 " in ran.stdout


def _unread_bytes(pipe: IO[bytes]) -> int:
    count = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_interrupted_output_ends_at_once_without_traceback(golden_uri: str) -> None:
    command = [sys.executable, "-m", "coldlog", "cat", "orders", "-w", golden_uri]
    # A shell's background job ignores Ctrl-C, and so would what it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, env=BUFFERED, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=PIPE_BYTES
    ) as printing:
        assert printing.stdout is not None
        assert printing.stderr is not None
        before = 0
        while (unread := _unread_bytes(printing.stdout)) == 0 or unread != before:
            assert printing.poll() is None
            before = unread
            time.sleep(0.1)
        printing.send_signal(signal.SIGINT)
        # Nobody reads on: what is left must not be written.
        assert printing.wait(timeout=20) == 130
        assert printing.stderr.read() == b""


def test_a_job_has_a_short_name() -> None:
    command = [sys.executable, "-m", "coldlog", "run", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert ran.stdout.startswith("usage: coldlog run_pipeline")
