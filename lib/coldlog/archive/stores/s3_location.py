"""s3_location: which bucket and which prefix does an `s3://` uri name?

`s3://bucket/prefix`; `s3a://` means the same. The prefix is taken as it is written: nothing in it is an escape.

Refused (UsageError), and not repeated in the message, for it may hold a secret: a user or password before the bucket, a
`?` (signed links end in one).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coldlog.archive.stores.object_names import require_prefix
from coldlog.errors import UsageError

_SCHEME = re.compile(r"s3a?://", re.IGNORECASE)
# Wider than the rules for new buckets: old ones and other servers' may be longer, or have capitals.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Location:
    """A bucket and a key prefix in it, without `/` at either end; the empty prefix is the whole bucket."""

    bucket: str
    prefix: str


def is_s3_uri(uri: str) -> bool:
    """It begins as one."""
    return _SCHEME.match(uri) is not None


def parse_s3_uri(uri: str) -> S3Location:
    """The bucket and prefix of a uri."""
    rest = uri[uri.index("://") + 3 :]
    bucket, _, prefix = rest.partition("/")
    # A secret key may hold a "/": then only the ":" before it tells.
    if "@" in bucket or ":" in bucket or "?" in uri:
        raise UsageError(
            "an s3 uri must not hold a user, a password or a signature (this one is not shown); give "
            "s3://bucket/prefix, and credentials by the environment or the AWS profile"
        )
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(
            "an s3 uri names no bucket; s3://bucket/prefix is expected, with 2 to 255 letters, digits, ., _ or -"
        )
    prefix = prefix.strip("/")
    require_prefix(prefix)
    return S3Location(bucket=bucket, prefix=prefix)
