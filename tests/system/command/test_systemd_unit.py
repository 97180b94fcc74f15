"""Test the unit file of `coldlog serve`: systemd finds nothing wrong, and the command takes its options."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

from coldlog.launch.entry_point import job_argument_parser
from coldlog.runtime.installation import CONF
from coldlog.runtime.settings_sources import load_settings
from coldlog.serve.command_line import add_serve_options

UNIT = CONF / "systemd" / "coldlog-serve.service"
PAGE = CONF.parent / "docs" / "how-to" / "serve-kafka-clients.md"
SANDBOX = {
    "CapabilityBoundingSet", "LockPersonality", "NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectHome",
    "ProtectSystem", "RestrictAddressFamilies", "RestrictNamespaces", "SystemCallFilter",
}  # fmt: skip


def _service() -> dict[str, str]:
    unit = configparser.RawConfigParser()
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # systemd tells upper and lower case apart
    unit.read(UNIT)
    assert unit.sections() == ["Unit", "Service", "Install"]
    return dict(unit["Service"])


def _found_by_systemd(folder: Path, verify: str) -> str:
    """What `systemd-analyze verify` says of the unit, if the command was installed."""
    text = UNIT.read_text(encoding="utf-8")
    command = shlex.split(_service()["ExecStart"])[0]
    installed = folder / UNIT.name
    installed.write_text(text.replace(command, "/bin/true"), encoding="utf-8")
    ran = subprocess.run([verify, "verify", str(installed)], check=False, capture_output=True, text=True, timeout=60)
    return ran.stdout + ran.stderr + ("" if ran.returncode == 0 else f"exit code {ran.returncode}")


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    """Where systemd is not installed, the file is only read."""
    verify = shutil.which("systemd-analyze")
    assert _service().keys() >= SANDBOX
    assert ("" if verify is None else _found_by_systemd(tmp_path, verify)) == ""


def test_the_command_takes_what_the_unit_gives_it() -> None:
    program, job, *options = shlex.split(_service()["ExecStart"])
    assert (program, job) == ("/opt/coldlog/bin/coldlog", "serve")
    parser = job_argument_parser("serve", None)
    add_serve_options(parser)
    assert parser.parse_args(options).config == "/etc/coldlog/serve.toml"


def test_it_is_given_longer_to_end_than_it_drains_and_is_reloaded_by_sighup() -> None:
    service = _service()
    assert service["KillSignal"] == "SIGTERM"
    assert float(service["TimeoutStopSec"]) > load_settings("local", []).serve.drain_seconds
    assert service["ExecReload"].split()[1:] == ["-HUP", "$MAINPID"]


def test_the_settings_file_of_the_page_is_read(tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Under systemd")[2]
    file = tmp_path / "serve.toml"
    file.write_text(section.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    settings = load_settings("local", [], config=str(file))
    assert (settings.serve.listen, settings.warehouse_uri) == ("127.0.0.1:9092", "/data/coldlog")
    assert _service()["ReadWritePaths"] == f"-{settings.warehouse_uri}"
