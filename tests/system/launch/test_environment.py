"""Test the installation: when it does nothing, what it refuses, and that its version files agree."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import environment
import pytest
from packaging.requirements import Requirement


def test_with_a_matching_stamp_nothing_is_installed() -> None:
    assert environment.has_packages("development")
    assert environment.has_jars()


def test_a_changed_constraint_or_path_starts_an_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = environment.packages_hash()
    for name in ("setup.cfg", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((environment.REPOSITORY / name).read_bytes())
    monkeypatch.setattr(environment, "REPOSITORY", tmp_path)
    elsewhere = environment.packages_hash()
    (tmp_path / "constraints.txt").write_text("numpy==1\n")
    assert len({before, elsewhere, environment.packages_hash()}) == 3


def test_a_mark_of_a_killed_installation_starts_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    monkeypatch.setattr(environment, "INSTALLING", mark)
    assert not environment.has_packages("development")


@pytest.mark.parametrize(
    ("release", "version"),
    [('JAVA_VERSION="17.0.15"', 17), ('JAVA_VERSION="1.8.0_402"', 8), ('JAVA_VERSION="25"', 25), ("", 0)],
)
def test_javas_version_is_read_from_its_release_file(tmp_path: Path, release: str, version: int) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "release").write_text(f'IMPLEMENTOR="x"\n{release}\n')
    assert environment.java_version(tmp_path / "bin" / "java") == version


def test_an_old_or_missing_java_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(environment.SetupError, match="Java 17 or newer is needed, but was not found"):
        environment.check_java()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(mode=0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    with pytest.raises(environment.SetupError, match="is 11; set JAVA_HOME"):
        environment.check_java()


def test_a_second_start_waits_for_the_first(tmp_path: Path) -> None:
    program = (
        "import environment, pathlib, sys, time\n"
        "environment.REPOSITORY = pathlib.Path(sys.argv[1])\n"
        "with environment.only_one_process():\n"
        "    log = environment.REPOSITORY / 'log'\n"
        "    log.write_text(log.read_text() + 'in ')\n"
        "    time.sleep(0.3)\n"
        "    log.write_text(log.read_text() + 'out ')\n"
    )
    (tmp_path / "log").touch()
    command = [sys.executable, "-c", program, str(tmp_path)]
    starts = [subprocess.Popen(command, cwd=environment.REPOSITORY, stderr=subprocess.PIPE) for _ in range(3)]
    messages = [start.communicate(timeout=60)[1].decode() for start in starts]
    assert (tmp_path / "log").read_text() == "in out " * 3
    assert sum("waiting for another process" in message for message in messages) == 2


def test_airflow_is_installed_again_when_its_versions_or_its_path_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hashes = {environment.airflow_hash()}
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(environment.AIRFLOW_CONSTRAINTS.read_text() + "numpy==1\n")
    monkeypatch.setattr(environment, "AIRFLOW_CONSTRAINTS", constraints)
    hashes.add(environment.airflow_hash())
    monkeypatch.setattr(environment, "REPOSITORY", tmp_path)
    hashes.add(environment.airflow_hash())
    assert len(hashes) == 3


def test_the_dependencies_of_airflow_are_pinned() -> None:
    wanted = [line for line in environment.AIRFLOW_REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    pinned = environment.AIRFLOW_CONSTRAINTS.read_text().splitlines()
    assert all("==" in line for line in [*wanted, *pinned])
    assert set(wanted) <= set(pinned)


def test_every_direct_requirement_is_pinned_within_its_range() -> None:
    """The newest versions of the ranges are those of constraints.txt, so that CI tests them."""
    config = configparser.ConfigParser()
    config.read(environment.REPOSITORY / "setup.cfg")
    groups = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    lines = {line for group in groups for line in group.splitlines() if line and not line.startswith("#")}
    direct = [each for each in map(Requirement, lines) if each.name != "coldlog"]
    pins = [Requirement(line) for line in (environment.REPOSITORY / "constraints.txt").read_text().splitlines()]
    pinned = {each.name: str(each.specifier).removeprefix("==") for each in pins}
    assert direct
    assert all(str(each.specifier).startswith("==") for each in pins)
    assert [str(each) for each in direct if each.name not in pinned or pinned[each.name] not in each.specifier] == []


def test_the_s3_server_is_built_once_and_again_for_another_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Install with a stand-in for go that records its arguments and writes a program, or fails."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\ntouch "$GOBIN/versitygw"\nexit "${{FAILS:-0}}"\n')
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    monkeypatch.setattr(environment, "TOOLS", tmp_path / "tools")
    monkeypatch.setattr(environment, "VERSITYGW", tmp_path / "tools" / "versitygw")
    lock = (tmp_path / "lock").open("w")
    with lock:
        monkeypatch.setenv("FAILS", "1")
        with pytest.raises(environment.SetupError, match="go install .*versitygw@v1.8.0"):
            environment.install_versitygw(lock.fileno())
        assert not environment.has_extra_program("cluster")
        monkeypatch.setenv("FAILS", "0")
        environment.install_versitygw(lock.fileno())
    assert environment.has_extra_program("cluster")
    monkeypatch.setattr(environment, "VERSITYGW_MODULE", "another@v2")
    assert not environment.has_extra_program("cluster")
    assert (tmp_path / "told").read_text() == "install github.com/versity/versitygw/cmd/versitygw@v1.8.0\n" * 2


def test_without_go_the_s3_server_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(environment.SetupError, match="Go 1.24 or newer is needed"):
        environment.install_versitygw(0)


@pytest.mark.parametrize("code", [0, 3])
def test_jars_are_resolved_by_maven_and_its_output_is_shown_if_it_fails(tmp_path: Path, code: int) -> None:
    """Resolve with a stand-in for mvn, which makes a jar and records the pom that it is given."""
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(
        '#!/bin/sh\nfor each; do case $each in -DoutputDirectory=*) touch "${each#*=}/a.jar";; esac; done\n'
        f'echo "$@"\nexit {code}\n'
    )
    maven.chmod(0o755)
    jars = tmp_path / "jars"
    jars.mkdir()
    command = [sys.executable, "-P", "-m", "coldlog.launch.jars", str(jars)]
    ran = subprocess.run(
        command, env={"PATH": f"{maven.parent}:/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert [each.name for each in jars.iterdir()] == ["a.jar"]
    if code == 0:
        assert (ran.returncode, ran.stderr) == (0, "")
    else:
        assert ran.returncode == 1
        assert f"--file {environment.POM} " in ran.stderr
        assert ran.stderr.endswith(f"{maven} failed with exit code 3, see above; fix that and start again\n")
