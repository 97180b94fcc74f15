"""Open the archive that the settings name, with the limits that they set."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.open_archive import LayoutOptions, open_archive
from coldlog.archive.stores.s3_client import S3Options
from coldlog.formats.limits import DecodeLimits
from coldlog.runtime.settings import Settings


def layout_opener(settings: Settings) -> Callable[[], ArchiveLayout]:
    """What opens the archive at `archive.uri`, here or in another process; `UsageError` where there is none."""
    own = settings.archive
    options = LayoutOptions(above_partitions=own.above_partitions or "", key_prefix=own.key_prefix or "")
    return partial(open_archive, settings.archive_uri, own.layout, options, s3_options(settings))


def decode_limits(settings: Settings) -> DecodeLimits:
    """The largest batch that is read, as it is stored and decompressed."""
    index = settings.index
    return DecodeLimits(max_batch_bytes=index.max_batch_bytes, max_decompressed_bytes=index.max_decompressed_bytes)


def s3_options(settings: Settings) -> S3Options:
    """How archives in a bucket are asked."""
    own = settings.s3
    return S3Options(
        connect_timeout_ms=own.connect_timeout_ms,
        read_timeout_ms=own.read_timeout_ms,
        max_attempts=own.max_attempts,
        first_delay_ms=own.first_delay_ms,
        read_ahead_bytes=own.read_ahead_bytes,
    )
