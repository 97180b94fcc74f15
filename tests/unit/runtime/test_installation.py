"""Test where the files of the library are found: in a checkout, and of an installed package."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coldlog.runtime import installation
from coldlog.runtime.spark import spark_versions


def _write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_a_checkout_is_found_from_its_library_and_from_the_package_for_executors(tmp_path: Path) -> None:
    root = _write(tmp_path / "checkout", "conf/base.toml", "lib/coldlog/__init__.py")
    assert installation.find_checkout(root / "lib" / "coldlog") == root
    assert installation.find_checkout(root / ".executors" / "coldlog-1.zip" / "coldlog") == root


def test_an_installed_package_is_not_of_the_checkout_around_its_environment(tmp_path: Path) -> None:
    root = _write(tmp_path / "checkout", "conf/base.toml", "lib/coldlog/__init__.py")
    package = _write(root / "environment" / "coldlog", "conf/base.toml")
    assert installation.find_checkout(package) is None
    assert installation.find_checkout(_write(tmp_path / "elsewhere" / "coldlog", "__init__.py")) is None


def test_an_installed_package_keeps_jars_in_the_users_cache_by_their_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLDLOG_JARS", raising=False)
    monkeypatch.setenv("COLDLOG_CACHE", str(tmp_path / "cache"))
    pom = tmp_path / "pom.xml"
    monkeypatch.setattr(installation, "CHECKOUT", None)
    monkeypatch.setattr(installation, "POM", pom)
    pom.write_text("4.2")
    first = installation.default_jar_directory()
    assert first.parent == tmp_path / "cache" / "jars"
    pom.write_text("4.3")
    other_pom = installation.default_jar_directory()
    assert other_pom != first
    monkeypatch.setattr(spark_versions, "installed_version", lambda: "4.1.4")
    assert (other_pom.name[:10], installation.default_jar_directory().name[:10]) == ("spark-4.2-", "spark-4.1-")
    monkeypatch.setenv("COLDLOG_JARS", "/mnt/jars")
    assert installation.default_jar_directory() == Path("/mnt/jars")


def test_compiled_kernels_are_in_the_users_cache_if_the_environment_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLDLOG_CACHE", str(tmp_path / "cache"))
    assert installation.kernel_directory(tmp_path) == tmp_path / "numba-cache"
    assert installation.kernel_directory(tmp_path / "of-another-user") == tmp_path / "cache" / "numba-cache"


@pytest.mark.parametrize("has_checkout", [False, True])
def test_kernels_are_kept_in_a_private_folder_if_no_other_can_be_written(
    has_checkout: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "of-another-user" if has_checkout else None
    monkeypatch.setattr(installation, "CHECKOUT", checkout)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    installation.keep_compiled_kernels()
    assert "NUMBA_CACHE_DIR" not in os.environ, "numba finds one itself"
    if checkout is not None:
        (checkout / ".venv").mkdir(parents=True)
    # Root may write everywhere, so the answer of the system is replaced.
    monkeypatch.setattr(os, "access", lambda *_: False)
    installation.keep_compiled_kernels()
    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)

    monkeypatch.delenv("NUMBA_CACHE_DIR")
    folder.chmod(0o777)
    installation.keep_compiled_kernels()
    assert "NUMBA_CACHE_DIR" not in os.environ, "others could put there what is run"
