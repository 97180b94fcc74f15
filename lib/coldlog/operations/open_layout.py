"""open_layout: which archive do the settings mean?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from coldlog.archive.layout import ArchiveLayout
from coldlog.archive.open_archive import LayoutOptions, open_archive
from coldlog.settings import Settings


def layout_opener(settings: Settings) -> Callable[[], ArchiveLayout]:
    """What opens the archive at `archive.uri`, here or in another process; `UsageError` where there is none."""
    own = settings.archive
    options = LayoutOptions(above_partitions=own.above_partitions or "")
    return partial(open_archive, settings.archive_uri, own.layout, options)
