"""Open the archive that the settings name, with the limits that they set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from coldlog.errors import UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.runtime.settings import Settings

if TYPE_CHECKING:
    from coldlog.archive.layouts.layout import ArchiveLayout, LayoutOptions
    from coldlog.archive.stores.s3_client import S3Options


def layout_opener(settings: Settings) -> Callable[[], ArchiveLayout]:
    """A function that opens the archive at `archive.uri`, in this or another process; `UsageError` if it is not set."""
    return partial(_open_layout, settings.archive_uri, settings)


def open_or_advise(settings: Settings) -> None:
    """Open the archive. If there is none at `archive.uri`, the error has a note that says what to do."""
    with advising_archive(settings):
        layout_opener(settings)()


@contextmanager
def advising_archive(settings: Settings) -> Iterator[None]:
    """If there is no archive at `archive.uri` when the block opens it, add a note that says what to do to the error."""
    try:
        yield
    except UsageError as none:
        # Imported here, because it looks into other places only after an error.
        from coldlog.archive.layouts.layout import NoArchiveError
        from coldlog.archive.nearest_archive import advise

        if not isinstance(none, NoArchiveError):
            raise
        archive = settings.archive
        none.add_note(advise(settings.archive_uri, archive.layout, _layout_options(settings), s3_options(settings)))
        raise


def _layout_options(settings: Settings) -> LayoutOptions:
    from coldlog.archive.layouts.layout import LayoutOptions

    archive = settings.archive
    return LayoutOptions(above_partitions=archive.above_partitions or "", key_prefix=archive.key_prefix or "")


def _open_layout(uri: str, settings: Settings) -> ArchiveLayout:
    # Imported here, because many questions need no archive, and stores take longer to import than an answer.
    from coldlog.archive.open_archive import open_archive

    return open_archive(uri, settings.archive.layout, _layout_options(settings), s3_options(settings))


def decode_limits(settings: Settings) -> DecodeLimits:
    """The largest batch that is read, compressed and decompressed."""
    index = settings.index
    return DecodeLimits(max_batch_bytes=index.max_batch_bytes, max_decompressed_bytes=index.max_decompressed_bytes)


def s3_options(settings: Settings) -> S3Options:
    """The options of requests to S3."""
    from coldlog.archive.stores.s3_client import S3Options

    s3 = settings.s3
    return S3Options(
        connect_timeout_ms=s3.connect_timeout_ms,
        read_timeout_ms=s3.read_timeout_ms,
        max_attempts=s3.max_attempts,
        first_delay_ms=s3.first_delay_ms,
        read_ahead_bytes=s3.read_ahead_bytes,
    )
