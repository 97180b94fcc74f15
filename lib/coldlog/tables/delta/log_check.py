"""Check the log of a table in a folder before it is read, and write checkpoints that can be checked.

A damaged log can be read and give other rows: delta-rs takes an empty commit for a version without changes, and does
not notice a commit that ends after a whole line. Refused with `ColdlogError`, which names the file:

- a commit, a checkpoint or the newest `<version>.crc` (facts of a version) that is empty, missing, or differs from its
  checksums (`file_checksums`);
- a newest commit that is missing, but whose checksums are there: they are written after the commit;
- a `_last_checkpoint` that is not JSON, or names a checkpoint that is missing.

Commits before the last checkpoint are not needed and not checked. Logs on S3 are not checked: there a store answers for
the bytes of its objects. Another job may commit or clean up meanwhile, so only what is found twice is damage.

A job that opens the same tables many times checks a version once (`checking_once`).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice

from deltalake import DeltaTable

from coldlog.errors import ColdlogError
from coldlog.tables.delta.files.file_checksums import check_file, checksums_path, damaged, write_checksums
from coldlog.tables.delta.locations import local_folder

LOG_FOLDER = "_delta_log"
_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\..+")
_AFTER_COMMIT = re.compile(r"([0-9]{20})\.crc|\.([0-9]{20})\.json\.crc")
_LAST_CHECKPOINT = "_last_checkpoint"
_PAUSE_S = 0.02
_checked: list[dict[str, int]] = []
"""The newest version of each log when it was checked, for each `checking_once`; the last one counts."""


@contextmanager
def checking_once() -> Iterator[None]:
    """Let `check_log` check each newest version once. This is for one job, which checks each log many times."""
    _checked.append({})
    try:
        yield
    finally:
        _checked.pop()


def check_log(location: str, version: int | None = None) -> None:
    """Raise `ColdlogError` if what the newest version needs, or the given one, is damaged; a missing table passes."""
    log = os.path.join(local_folder(location) or "", LOG_FOLDER)
    if local_folder(location) is None or not os.path.isdir(log):
        return
    if version is None and _is_checked(log):
        return
    try:
        _check(log, version)
    except (ColdlogError, FileNotFoundError):
        time.sleep(_PAUSE_S)
        with suppress(FileNotFoundError):
            _check(log, version)


def _is_checked(log: str) -> bool:
    newest = _checked[-1].get(log) if _checked else None
    if newest is None:
        return False
    return os.path.exists(_commit_path(log, newest)) and not os.path.exists(_commit_path(log, newest + 1))


def _commit_path(log: str, version: int) -> str:
    return os.path.join(log, f"{version:020d}.json")


def newest_commit_path(location: str) -> str:
    """Return the path of the newest commit of which a folder's log has a trace; else that of the log."""
    folder = local_folder(location)
    if folder is None:
        return f"{location}/{LOG_FOLDER}"
    log = os.path.join(folder, LOG_FOLDER)
    names = frozenset(os.listdir(log))
    known = [_versions(pattern, names) for pattern in (_COMMIT, _CHECKPOINT, _AFTER_COMMIT)]
    newest = max(set().union(*known), default=None)
    return log if newest is None else _commit_path(log, newest)


def create_checkpoint(table: DeltaTable, location: str) -> None:
    """Write a checkpoint of the opened version and, in a folder, its checksums."""
    folder = local_folder(location)
    if folder is None:
        table.create_checkpoint()
        return
    log = os.path.join(folder, LOG_FOLDER)
    checkpoint = os.path.join(log, f"{table.version():020d}.checkpoint.parquet")
    # Those of files that delta-rs is about to replace.
    for replaced in (checkpoint, os.path.join(log, _LAST_CHECKPOINT)):
        with suppress(FileNotFoundError):
            os.unlink(checksums_path(replaced))
    table.create_checkpoint()
    write_checksums(checkpoint)


def _check(log: str, version: int | None) -> None:
    names = frozenset(os.listdir(log))
    for name in _needed_names(log, names, version):
        path = os.path.join(log, name)
        if name not in names:
            raise damaged(path, "it is missing")
        if not os.stat(path).st_size:
            raise damaged(path, "it is empty")
        check_file(path)
    commits = _versions(_COMMIT, names)
    if _checked and commits and version is None:
        _checked[-1][log] = max(commits)


def _needed_names(log: str, names: frozenset[str], version: int | None) -> Iterator[str]:
    """Yield the names of the files that make up a version."""
    known = _versions(_COMMIT, names) | _versions(_AFTER_COMMIT, names)
    if not known:
        return
    newest = max(known) if version is None else version
    checkpoints = _versions(_CHECKPOINT, names)
    if _LAST_CHECKPOINT in names:
        _require_named_checkpoint(os.path.join(log, _LAST_CHECKPOINT), checkpoints)
    base = max((at for at in checkpoints if at <= newest), default=-1)
    yield from (name for name in names if base >= 0 and name.startswith(f"{base:020d}.checkpoint."))
    yield from (f"{at:020d}.json" for at in range(base + 1, newest + 1))
    # The newest facts of a version, which delta-rs believes.
    facts = (name for at in range(newest, max(base, 0) - 1, -1) if (name := f"{at:020d}.crc") in names)
    yield from islice(facts, 1)


def _versions(pattern: re.Pattern[str], names: frozenset[str]) -> set[int]:
    found = (pattern.fullmatch(name) for name in names)
    return {int(next(filter(None, each.groups()))) for each in found if each is not None}


def _require_named_checkpoint(path: str, checkpoints: set[int]) -> None:
    with open(path, "rb") as file:
        content = file.read()
    try:
        version = int(json.loads(content)["version"])
    except (ValueError, TypeError, KeyError):
        raise damaged(path, "it is not the JSON of a checkpoint") from None
    if version not in checkpoints:
        raise damaged(path, f"it names {version:020d}.checkpoint.parquet, which is missing")
