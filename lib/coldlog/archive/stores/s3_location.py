"""Parse `s3://bucket/prefix` uris.

`s3a://` means the same as `s3://`. The prefix is used unchanged: it has no escapes.

Refused (UsageError): a user or password before the bucket, and a `?` (as in signed links). The message does not repeat
the uri, because it may contain a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coldlog.archive.stores.object_names import require_prefix
from coldlog.errors import UsageError

_SCHEME = re.compile(r"s3a?://", re.IGNORECASE)
# Less strict than the rules for new buckets: old buckets and those of other servers may be longer or have capitals.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Location:
    """A bucket and a key prefix, without `/` at either end; the empty prefix is the whole bucket."""

    bucket: str
    prefix: str


def is_s3_uri(uri: str) -> bool:
    """The uri begins with `s3://` or `s3a://`."""
    return _SCHEME.match(uri) is not None


def parse_s3_uri(uri: str) -> S3Location:
    """The bucket and prefix of a uri."""
    rest = uri[uri.index("://") + 3 :]
    bucket, _, prefix = rest.partition("/")
    # A secret key may contain "/". Then only the ":" before it is in the bucket's part.
    if "@" in bucket or ":" in bucket or "?" in uri:
        raise UsageError(
            "an s3 uri must not contain a user, a password or a signature (the uri is not shown); use "
            "s3://bucket/prefix, and give credentials in the environment or the AWS profile"
        )
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(
            "an s3 uri has no valid bucket; use s3://bucket/prefix, with 2 to 255 letters, digits, ., _ or -"
        )
    prefix = prefix.strip("/")
    require_prefix(prefix)
    return S3Location(bucket=bucket, prefix=prefix)
