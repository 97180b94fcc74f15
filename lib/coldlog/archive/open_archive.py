"""open_archive: which store and layout does a setting `archive.uri` with `archive.layout` mean?

The one place that knows them all. A uri is a path or `file:///path`; for LocalTieredStorage it may be given with or
without the last component `kafka-tiered-storage`, which Kafka adds by itself to `rsm.config.dir`. A copy of that tree
under another name is accepted when it holds at least one partition directory. A mirror of log directories must hold
one too, where `LayoutOptions` say.

Refused (UsageError): another scheme, an unknown layout, a directory that is missing or holds no such tree. An archive
that is refused is better than one that seems empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from coldlog.archive.layout import ArchiveLayout
from coldlog.archive.local_store import LocalStore
from coldlog.archive.local_tiered_storage import (
    LOCAL_TIERED_STORAGE,
    ROOT_DIRECTORY,
    LocalTieredStorageLayout,
    find_partition_directory,
)
from coldlog.archive.log_directories_layout import LOG_DIRECTORIES, LogDirectoriesLayout
from coldlog.archive.object_store import ObjectStore, RootedStore
from coldlog.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """What some layouts need to be told beside their uri; see the settings of the same names."""

    above_partitions: str = ""


_NO_OPTIONS = LayoutOptions()


def open_archive(uri: str, layout_name: str, options: LayoutOptions = _NO_OPTIONS) -> ArchiveLayout:
    """The archive's layout over its store; can be pickled and sent to where it is read."""
    opener = _OPENERS.get(layout_name)
    if opener is None:
        raise UsageError(f"unknown archive layout {layout_name!r}; known are: {', '.join(LAYOUT_NAMES)}")
    return opener(_find_store(uri, "archive"), options)


def open_store(uri: str) -> ObjectStore:
    """The store whose root `uri` names."""
    return _find_store(uri, "directory")


def _find_store(uri: str, what: str) -> RootedStore:
    directory = directory_of(uri)
    if not os.path.isdir(directory):
        raise UsageError(f"no {what} at {uri}: {directory} is not a directory that can be reached")
    return LocalStore(root=directory, uri=uri)


def directory_of(uri: str) -> str:
    """The absolute path that a path or a file uri means."""
    parts = urlsplit(uri) if "://" in uri or uri.startswith("file:") else None
    if parts is None:
        path = uri
    elif parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        path = unquote(parts.path)
    else:
        raise UsageError(f"cannot open an archive at {uri!r}; a directory or file:///directory is expected")
    if not path or "\0" in path:
        raise UsageError(f"not the path of a directory: {path!r}")
    return os.path.abspath(path)


def _open_local_tiered_storage(store: RootedStore, _: LayoutOptions) -> ArchiveLayout:
    if store.has_directory(ROOT_DIRECTORY):
        return LocalTieredStorageLayout(store=store.below(ROOT_DIRECTORY))
    is_tree = store.root.rpartition("/")[2] == ROOT_DIRECTORY or any(
        find_partition_directory(name) for name in store.list_directories("")
    )
    if not is_tree:
        raise UsageError(
            f"no {LOCAL_TIERED_STORAGE} archive at {store.uri}: it holds neither {ROOT_DIRECTORY} nor a directory "
            "named <topic>-<partition>-<topic id>"
        )
    return LocalTieredStorageLayout(store=store)


def _open_log_directories(store: RootedStore, options: LayoutOptions) -> ArchiveLayout:
    layout = LogDirectoriesLayout(store=store, above_partitions=options.above_partitions)
    if not layout.holds_partitions():
        where = f"{layout.above_partitions}/" if layout.above_partitions else ""
        raise UsageError(
            f"no {LOG_DIRECTORIES} archive at {store.uri}: it holds no directory {where}<topic>-<partition>; "
            "directories between archive.uri and the partitions are named by archive.above_partitions"
        )
    return layout


_OPENERS: Mapping[str, Callable[[RootedStore, LayoutOptions], ArchiveLayout]] = {
    LOCAL_TIERED_STORAGE: _open_local_tiered_storage,
    LOG_DIRECTORIES: _open_log_directories,
}
LAYOUT_NAMES = tuple(_OPENERS)
