"""Test what workers of a cluster import."""

from __future__ import annotations

import zipfile
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from zipimport import zipimporter

import pytest

from coldlog.launch import executor_packages
from coldlog.launch.executor_packages import package_zip
from coldlog.runtime.installation import PACKAGE


def _imported(packed: Path) -> str:
    """What is imported of a module."""
    return zipimporter(f"{packed}/coldlog").get_filename("errors")


def test_workers_import_bytecode_and_another_python_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _imported(package_zip(tmp_path)).endswith("coldlog/errors.pyc")
    monkeypatch.setattr(executor_packages, "MAGIC_NUMBER", bytes([MAGIC_NUMBER[0] ^ 1, *MAGIC_NUMBER[1:]]))
    of_another = package_zip(tmp_path)
    assert _imported(of_another).endswith("coldlog/errors.py")
    assert len(list(tmp_path.iterdir())) == 2, "each Python has its own"


def test_every_module_is_packed_as_it_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(package_zip(tmp_path)) as packed:
        names = [name for name in packed.namelist() if not name.endswith(".pyc")]
        assert {name: packed.read(name) for name in names} == {
            file.relative_to(PACKAGE.parent).as_posix(): file.read_bytes()
            for file in PACKAGE.rglob("*")
            if file.suffix in (".py", ".sql", ".typed")
        }
