"""Addresses and options of the Kafka client that are refused before it is made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coldlog.brokers.kafka_client import open_cluster
from coldlog.errors import UsageError

TIMEOUT_MS = 1_000
SECRET = "tell-nobody"


def _options(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            f"sasl.plain.passwort={SECRET}",
            "line 1: sasl.plain.passwort cannot be set; did you mean sasl_plain_password",
        ),
        ("bootstrap.servers=h:1", "line 1: bootstrap.servers cannot be set"),
        ("group.id=ours", "line 1: group.id cannot be set"),
        ("enable.auto.commit=true", "line 1: enable.auto.commit cannot be set"),
        ("ssl.context=x", "line 1: ssl.context cannot be set"),
        (SECRET, "line 1: not key=value"),
        (f"ssl.check.hostname={SECRET}", "line 1: ssl_check_hostname must be true or false"),
        (f"retry.backoff.ms={SECRET}", "line 1: retry_backoff_ms must be a number"),
    ],
)
def test_option_that_cannot_be_set_is_refused_without_its_value(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        open_cluster("h:1", TIMEOUT_MS, _options(tmp_path / "client.properties", line))
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_settings_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"client_config cannot be read: .*/none: FileNotFoundError"):
        open_cluster("h:1", TIMEOUT_MS, str(tmp_path / "none"))
    for servers in ("host", "host:port", "h:1,,h:2", "h:1;h:2"):
        with pytest.raises(UsageError, match="use host:port"):
            open_cluster(servers, TIMEOUT_MS, None)


def test_client_that_is_not_installed_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kafka", None)
    with pytest.raises(UsageError, match=r"pip install 'coldlog\[kafka\]'"):
        open_cluster("h:1", TIMEOUT_MS, None)
