"""Test which uris of S3 are taken, and that none with a secret is repeated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coldlog.archive.open_archive import open_archive, open_store
from coldlog.archive.stores.s3_location import parse_s3_uri
from coldlog.errors import UsageError
from coldlog.runtime.settings_sources import load_settings

LAYOUT = "local_tiered_storage"


@pytest.mark.parametrize("uri", ["s3://", "s3:///x", "s3://b/a//b", "s3://b/../c", "s3://b\0ucket/x", "s3://a b/c"])
def test_invalid_s3_uris_are_refused(uri: str) -> None:
    with pytest.raises(UsageError):
        open_archive(uri, LAYOUT)


def test_prefix_is_used_unchanged() -> None:
    location = parse_s3_uri("s3://my-bucket/a%20b/c+d #e/")
    assert (location.bucket, location.prefix) == ("my-bucket", "a%20b/c+d #e")


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIAX:S3CRET@bucket/x",
        "s3a://AKIAX:S3C/RET@bucket/x",
        "s3://S3CRET@bucket",
        "s3://bucket/x?X-Amz-Signature=S3CRET&X-Amz-Credential=S3CRET",
        "https://user:S3CRET@host/bucket",
        "https://host/bucket/x?X-Amz-Signature=S3CRET",
    ],
)
def test_uris_with_secrets_are_refused_and_not_repeated(uri: str) -> None:
    refusals: tuple[Callable[[], object], ...] = (
        lambda: open_archive(uri, LAYOUT),
        lambda: open_store(uri),
        lambda: load_settings("local", [f"archive.uri={uri}"]),
    )
    for refuse in refusals:
        with pytest.raises(UsageError) as refused:
            refuse()
        assert "S3C" not in str(refused.value)
        assert "RET" not in str(refused.value)
