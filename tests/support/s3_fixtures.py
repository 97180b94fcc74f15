"""s3_fixtures: what may a test ask for that needs S3?

One server and one proxy before it for the whole run, so that coldlog's client, which takes a while to be made, is made
once; a bucket for each test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from servers.s3_proxy import S3Proxy
    from servers.s3_server import Bucket, S3Server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """moto's server, for the whole run; `environment()` is what reaches it."""
    from servers.s3_server import running_moto

    with running_moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """versitygw, for the whole run; a machine that lacks the program fails the test."""
    import environment

    from servers.s3_server import running_versitygw

    if not environment.has_versitygw():
        pytest.fail("versitygw is needed and is not there; `python3.11 environment.py cluster` builds it")
    with running_versitygw(environment.VERSITYGW, tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture(scope="session")
def session_s3_proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    """The proxy of all tests."""
    from coldlog.archive.stores.s3_client import close_clients
    from servers.s3_proxy import running_proxy

    with running_proxy(s3_server.endpoint) as proxy:
        yield proxy
        close_clients()


@pytest.fixture
def s3_proxy(session_s3_proxy: S3Proxy) -> Iterator[S3Proxy]:
    """A proxy before the server that counts what this test asks, and breaks what it is told to."""
    session_s3_proxy.begin()
    yield session_s3_proxy
    session_s3_proxy.begin()


@pytest.fixture(scope="session")
def golden_bucket(golden_uri: str, s3_server: S3Server) -> Bucket:
    """A bucket with a copy of the sample's warehouse, as `warehouse`; it is read only."""
    bucket = s3_server.make_bucket()
    bucket.put_directory(Path(golden_uri), "warehouse")
    return bucket


@pytest.fixture
def s3_access(s3_server: S3Server, s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> S3Proxy:
    """The environment in which coldlog reaches the server, through the proxy."""
    for name, value in s3_server.environment(s3_proxy.endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    return s3_proxy


@pytest.fixture
def bucket(s3_server: S3Server, s3_access: S3Proxy) -> Bucket:
    """A fresh bucket, which coldlog reaches through the proxy."""
    return s3_server.make_bucket()
