"""s3_server: how does a test get an S3 server of its own?

moto's server in a process of its own on a free port of the loopback, for the fast tests, and versitygw, which checks
signatures and keeps objects as files, for the others. Pages of moto's listings have ten entries, so that every listing
of more is one of several pages. A server that does not come up fails the test.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from botocore.config import Config

PAGE_KEYS = 10
ACCESS_KEY, SECRET_KEY = "AKIAREADERSKEYISHERE", "tell-nobody/not+even=once"
REGION = "eu-north-1"
_START_S, _TICK_S = 60, 0.05
_LISTENING = re.compile(rb"Running on http://127\.0\.0\.1:(\d+)")
_ANYBODY = {"Authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/{REGION}/s3/aws4_request"}
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A server that answers at `endpoint`; `files` is where it keeps its buckets as directories, if it does."""

    endpoint: str
    files: Path | None = None

    def environment(self, endpoint: str = "") -> dict[str, str]:
        """What a process needs to reach it, or a proxy before it, and nothing that the machine may have of its own."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL_S3": endpoint or self.endpoint,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """boto3's, which puts and deletes what tests read."""
        return _boto3_client(self.endpoint)

    def make_bucket(self) -> Bucket:
        """A fresh one."""
        bucket = Bucket(server=self, name=f"bucket-{os.getpid()}-{next(_numbers)}", client=self.client())
        bucket.client.create_bucket(Bucket=bucket.name, CreateBucketConfiguration={"LocationConstraint": REGION})
        return bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket of a test's own."""

    server: S3Server
    name: str
    client: Any

    def put(self, objects: Mapping[str, bytes]) -> None:
        """Key to content. moto needs no signature, which would take most of the time."""
        if self.server.files is not None:
            for key, content in objects.items():
                self.client.put_object(Bucket=self.name, Key=key, Body=content)
            return
        with closing(HTTPConnection(self.server.endpoint.removeprefix("http://"))) as connection:
            for key, content in objects.items():
                connection.request("PUT", f"/{self.name}/{quote(key)}", body=content, headers=_ANYBODY)
                answer = connection.getresponse()
                assert (answer.status, answer.read()) == (200, b""), key

    def put_directory(self, directory: Path, prefix: str) -> None:
        """Every file below a directory, under its relative name."""
        files = (path for path in sorted(directory.rglob("*")) if path.is_file())
        self.put({f"{prefix}/{path.relative_to(directory).as_posix()}": path.read_bytes() for path in files})

    def delete(self, *keys: str) -> None:
        """Those keys."""
        for key in keys:
            self.client.delete_object(Bucket=self.name, Key=key)

    def keys(self) -> set[str]:
        """Of all objects."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return {each["Key"] for page in pages for each in page.get("Contents", ())}

    def uri(self, prefix: str = "") -> str:
        """As settings name it."""
        return f"s3://{self.name}/{prefix}"


@contextmanager
def running_moto(directory: Path) -> Iterator[S3Server]:
    """moto's server, until the end of the block."""
    log = directory / "moto.log"
    command = [sys.executable, "-P", str(Path(__file__).with_name("moto_s3.py"))]
    environment = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE_KEYS)}

    def find_endpoint() -> str | None:
        told = _LISTENING.search(log.read_bytes())
        return f"http://127.0.0.1:{int(told[1])}" if told else None

    with _running(command, environment, log, find_endpoint) as endpoint:
        yield S3Server(endpoint=endpoint)


@contextmanager
def running_versitygw(program: Path, directory: Path) -> Iterator[S3Server]:
    """versitygw over a directory, until the end of the block; a bucket is a directory there."""
    files = directory / "buckets"
    files.mkdir()
    port = _free_port()
    command = [str(program), "--port", f"127.0.0.1:{port}", "--region", REGION, "--quiet", "posix", str(files)]
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}

    def find_endpoint() -> str | None:
        with socket.socket() as probe:
            return f"http://127.0.0.1:{port}" if probe.connect_ex(("127.0.0.1", port)) == 0 else None

    with _running(command, environment, directory / "versitygw.log", find_endpoint) as endpoint:
        yield S3Server(endpoint=endpoint, files=files)


@contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str], log: Path, find_endpoint: Callable[[], str | None]
) -> Iterator[str]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield _wait_for(process, log, find_endpoint)
    finally:
        process.kill()
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], log: Path, find_endpoint: Callable[[], str | None]) -> str:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        endpoint = find_endpoint()
        if endpoint is not None:
            return endpoint
        time.sleep(_TICK_S)
    raise pytest.fail.Exception(f"the S3 server did not come up:\n{log.read_text(errors='replace')[-2000:]}")


@cache
def _boto3_client(endpoint: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name=REGION,
        config=Config(s3={"addressing_style": "path"}),
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
