"""Test that a missing package is named with the extra that has it."""

from __future__ import annotations

import configparser
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement

from coldlog.errors import UsageError
from coldlog.runtime import extras
from coldlog.runtime.installation import ROOT


def test_every_module_is_of_a_package_that_its_extra_has() -> None:
    config = configparser.ConfigParser(comment_prefixes=("#", "    #"))
    config.read(ROOT / "setup.cfg")
    owners = packages_distributions()
    through = {"fsspec": "s3fs", "botocore": "s3fs", "aiohttp": "s3fs", "py4j": "pyspark"}
    for extra, modules in extras.MODULES.items():
        required = {each.name for each in map(Requirement, config["options.extras_require"][extra].split("\n")[1:])}
        named = {through.get(name, name).replace("_", "-") for module in modules for name in owners[module]}
        assert named == required - {"coldlog"}, extra


def test_a_module_of_an_extra_is_advised_and_any_other_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "CHECKOUT", None)
    advised = extras.missing_extra(ModuleNotFoundError("no", name="numba.core"))
    assert str(advised) == "the Python package numba is missing: pip install 'coldlog[records]'"
    assert extras.missing_extra(ModuleNotFoundError("no", name="coldlog.nothing")) is None
    assert extras.missing_extra(ImportError("no", name="numba")) is None


def test_extras_are_required_before_the_job_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    extras.require_extras(["records", "spark"])
    monkeypatch.setitem(extras.MODULES, "kafka", ("a_module_that_nobody_has",))
    with pytest.raises(UsageError, match=r"a_module_that_nobody_has is missing: make setup"):
        extras.require_extras(["records", "kafka"])
