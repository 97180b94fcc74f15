"""Hold the Dockerfile to setup.cfg, environment.py and the command: no builder is needed to see these mistakes."""

from __future__ import annotations

import configparser
import re
from fnmatch import fnmatch
from typing import NamedTuple

import environment
import pytest

from coldlog.command import main as command
from coldlog.launch.submit import _WITHOUT_SPARK, list_jobs
from coldlog.runtime.installation import JOBS

DOCKERFILE = environment.REPOSITORY / "Dockerfile"
PAGE = environment.REPOSITORY / "docs" / "how-to" / "run-in-a-container.md"


class Step(NamedTuple):
    """An instruction of the Dockerfile, with its lines joined."""

    name: str
    text: str


def read_steps() -> list[Step]:
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Step(*line.split(" ", 1)) for line in joined.splitlines() if line]


def of(name: str, steps: list[Step]) -> list[str]:
    return [step.text for step in steps if step.name == name]


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    return read_steps()


@pytest.fixture(scope="module")
def defaults(steps: list[Step]) -> dict[str, str]:
    """The build arguments that have a default."""
    return dict(text.split("=", 1) for text in of("ARG", steps) if "=" in text)


def final(steps: list[Step]) -> list[Step]:
    """The steps of the image itself, which are those after the last FROM."""
    last = max(index for index, step in enumerate(steps) if step.name == "FROM")
    return steps[last:]


def test_both_stages_have_the_oldest_python_of_the_package_and_are_slim(
    steps: list[Step], defaults: dict[str, str]
) -> None:
    """One Python in both, because the environment names the interpreter that made it."""
    assert [text.split()[0] for text in of("FROM", steps)] == ["python:${PYTHON}"] * 2
    config = configparser.ConfigParser()
    config.read(environment.REPOSITORY / "setup.cfg")
    oldest = config["options"]["python_requires"].removeprefix(">=")
    assert defaults["PYTHON"].split("-")[:2] == [oldest, "slim"]


def test_the_image_has_a_java_that_jobs_take_and_no_compiler(steps: list[Step]) -> None:
    (installed,) = [text for text in of("RUN", final(steps)) if "apt-get install" in text]
    assert "--no-install-recommends" in installed
    assert "rm -rf /var/lib/apt/lists/*" in installed
    named = installed.split("--no-install-recommends")[1].split("&&")[0]
    packages = named.split()
    assert packages == [f"openjdk-{environment.MINIMUM_JAVA}-jre-headless"]


def test_the_last_user_is_not_root_and_is_known_to_the_system(steps: list[Step], defaults: dict[str, str]) -> None:
    assert of("USER", steps) == ["${UID}"]
    assert int(defaults["UID"]) > 0
    assert any("useradd --uid ${UID}" in text for text in of("RUN", final(steps)))
    assert [step.name for step in final(steps)][-4:] == ["USER", "WORKDIR", "ENTRYPOINT", "CMD"]


def test_the_package_is_installed_with_the_pinned_versions_and_what_every_job_needs(
    steps: list[Step], defaults: dict[str, str]
) -> None:
    (installing,) = [text for text in of("RUN", steps) if "pip install" in text]
    assert "PIP_CONSTRAINT=/build/constraints.txt /opt/coldlog/bin/pip install" in installing
    extras = set(defaults["EXTRAS"].split(","))
    config = configparser.ConfigParser()
    config.read(environment.REPOSITORY / "setup.cfg")
    of_users = config["options.extras_require"]["all"].strip().removeprefix("coldlog[").removesuffix("]").split(",")
    assert extras == set(of_users) - {"notebook"}
    assert {extra for needed in _WITHOUT_SPARK.values() for extra in needed} <= extras
    assert "validate_tables" in list_jobs(JOBS)


def test_the_jars_of_the_checkout_are_where_the_image_looks_for_them(steps: list[Step]) -> None:
    (installing,) = [text for text in of("RUN", steps) if "coldlog setup" in text]
    assert "COLDLOG_JARS=/opt/coldlog/jars /opt/coldlog/bin/coldlog setup --from /build/jars" in installing
    assert ".jars /build/jars" in of("COPY", steps)
    assert environment.JARS.name == ".jars"
    assert "COLDLOG_JARS=/opt/coldlog/jars" in of("ENV", final(steps))[0].split()


def test_the_image_starts_the_command_which_knows_every_job(steps: list[Step]) -> None:
    assert of("ENTRYPOINT", steps) == ['["coldlog"]']
    assert {name for name, _ in command.JOBS.values()} <= list_jobs(JOBS).keys()
    assert "PATH=/opt/coldlog/bin:$PATH" in of("ENV", final(steps))[0]


def test_the_builder_gets_what_is_copied_and_nothing_else(steps: list[Step]) -> None:
    lines = (environment.REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    first, *allowed = [line for line in lines if not line.startswith("#")]
    assert first == "*"
    copied = [source for text in of("COPY", steps) if "--from" not in text for source in text.split()[:-1]]
    for source in copied:
        assert any(fnmatch(pattern, f"!{source}*") or fnmatch(f"!{source}", pattern) for pattern in allowed), source
    assert len(copied) == len(allowed)


def test_the_page_names_each_build_argument_with_its_default(steps: list[Step], defaults: dict[str, str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| `?([^|`]*)`? \|", page, re.MULTILINE))
    assert rows.keys() == {text.split("=")[0] for text in of("ARG", steps)}
    assert {name: rows[name] for name in defaults} == defaults
