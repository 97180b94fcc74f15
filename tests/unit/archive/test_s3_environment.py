"""Test that AWS's settings are read once, and again when a variable or a file of them changes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import botocore.loaders
import pytest

from coldlog.archive.stores.s3_environment import open_s3_client, s3_client, s3_credentials, s3_endpoint


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only file with settings of AWS that botocore finds; it is empty."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "credentials"
    path.touch()
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    return path


def test_changed_variables_are_followed(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert s3_endpoint().url is None
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://store.test:9000")
    assert (s3_endpoint().url, s3_endpoint().is_path_style) == ("http://store.test:9000", True)
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert s3_endpoint().region == s3_client().meta.region_name == "us-west-2"


def test_changed_files_are_followed(profile: Path) -> None:
    assert s3_credentials() is None
    for key in ("AKIAFIRST", "AKIASECONDONE"):
        profile.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = x\n")
        found = s3_credentials()
        assert found is not None
        assert found.access_key == key
    config = profile.with_name("config")
    config.write_text("[default]\nendpoint_url = http://elsewhere.test\n")
    assert s3_endpoint().url == "http://elsewhere.test"


def test_a_client_is_made_once_as_long_as_nothing_changes(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = s3_client()
    assert first is s3_client()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    other = s3_client()
    assert (other is first, other is s3_client()) == (False, True)


def test_the_second_client_parses_no_file_of_the_library(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_s3_client()
    parsed: list[str] = []
    load = botocore.loaders.JSONFileLoader.load_file

    def noted(self: botocore.loaders.JSONFileLoader, path: str) -> object:
        parsed.append(path)
        return load(self, path)

    monkeypatch.setattr(botocore.loaders.JSONFileLoader, "load_file", noted)
    open_s3_client()
    s3_endpoint()
    threads = [threading.Thread(target=open_s3_client) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parsed == []
