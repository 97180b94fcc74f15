"""Build the package, and install it into empty environments far from this checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from environment import JARS

from installed_package import Demo, Installed, build_package, install

PYTHONS = os.environ.get("PYTHONS", "3.11 3.12 3.13").split()
"""Versions of Python."""


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `make wheel` has just built."""
    return build_package(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session", params=PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    """A version of Python."""
    return str(request.param)


@pytest.fixture(scope="session", params=["newest", "oldest"])
def bare(
    request: pytest.FixtureRequest, package: Path, python: str, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """The package without extras, with the newest or the oldest versions of what it needs."""
    return install(package, [], python, tmp_path_factory.mktemp("bare"), is_oldest=request.param == "oldest")


@pytest.fixture(scope="session", params=["newest", "oldest"])
def with_records(
    request: pytest.FixtureRequest, package: Path, python: str, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """The package with the extra `records`."""
    return install(
        package, ["records"], python, tmp_path_factory.mktemp("records"), is_oldest=request.param == "oldest"
    )


@pytest.fixture(scope="session")
def with_everything(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The package with all extras, with the newest versions, on the first Python."""
    return install(package, ["all"], PYTHONS[0], tmp_path_factory.mktemp("all"), is_oldest=False)


@pytest.fixture(scope="session")
def demo(with_everything: Installed, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """What the demo printed, and its tables."""
    folder = tmp_path_factory.mktemp("demo") / "warehouse"
    # The jars are those of the checkout.
    with_everything.run("setup", "--from", str(JARS))
    only_spark = _without_packages(folder.parent, "s3fs", "botocore", "aiohttp", "great_expectations", "kafka", "kio")
    printed = with_everything.run("demo", "--folder", str(folder), PYTHONPATH=str(only_spark)).stdout
    return Demo(folder=folder, printed=printed)


def _without_packages(folder: Path, *names: str) -> Path:
    """Return a folder for PYTHONPATH with which these packages cannot be imported, as if they were not installed."""
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({names}))\n")
    return folder


@pytest.fixture(scope="session")
def warehouse(request: pytest.FixtureRequest) -> Path:
    """The tables of the demo; WAREHOUSE names some that are there."""
    if made := os.environ.get("WAREHOUSE"):
        return Path(made)
    made_here: Demo = request.getfixturevalue("demo")
    return made_here.folder
