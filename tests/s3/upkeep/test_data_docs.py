"""Test pages in a bucket: the old ones stay until the new ones are written, and errors say what to do."""

from __future__ import annotations

import traceback

import pytest

from coldlog.errors import UsageError
from coldlog.runtime.settings_sources import load_settings
from coldlog.upkeep.data_docs import data_docs_folder, data_docs_place
from servers.s3_proxy import Fault, Request, S3Proxy
from servers.s3_server import SECRET_KEY, Bucket


def _is_write(request: Request) -> bool:
    return request.method in ("PUT", "POST", "DELETE")


def _write_pages(bucket: Bucket) -> list[str]:
    """Adds a result to those that are there; their names as they were found."""
    place = data_docs_place(load_settings("local", [f"validation.data_docs_uri={bucket.uri('pages')}"]))
    with data_docs_folder(place) as folder:
        found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        (folder / "results").mkdir(exist_ok=True)
        (folder / "results" / "new.json").write_text("{}")
        (folder / "index.html").write_text("<html>new</html>")
    return found


def test_a_bucket_without_write_permission_keeps_its_pages_and_the_error_says_what_to_do(
    bucket: Bucket, s3_proxy: S3Proxy
) -> None:
    before = {"pages/results/old.json": b"{}", "pages/index.html": b"<html>old</html>"}
    bucket.put(before)
    s3_proxy.strikes, s3_proxy.faults = _is_write, [Fault(status=403, code="AccessDenied")] * 20
    with pytest.raises(UsageError, match=f"no permission to write .*s3://{bucket.name}/pages.*s3:PutObject") as refused:
        _write_pages(bucket)
    assert SECRET_KEY not in "".join(traceback.format_exception(refused.value))
    assert bucket.keys() == set(before)
    assert bucket.client.get_object(Bucket=bucket.name, Key="pages/index.html")["Body"].read() == b"<html>old</html>"
    s3_proxy.faults = []
    assert _write_pages(bucket) == ["results/old.json"], "what was found before is a part of the new pages"
    assert bucket.keys() == {"pages/results/old.json", "pages/results/new.json", "pages/index.html"}


def test_results_that_may_not_be_read_are_reported_before_the_validation(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    bucket.put({"pages/results/old.json": b"{}"})
    s3_proxy.faults = [Fault(status=403, code="AccessDenied")] * 20
    with pytest.raises(UsageError, match=f"no permission to list s3://{bucket.name}"):
        _write_pages(bucket)
    assert bucket.keys() == {"pages/results/old.json"}
