"""open_archive: which store and layout does a setting `archive.uri` with `archive.layout` mean?

The one place that knows them all. A uri is a path or `file:///path`; for LocalTieredStorage it may be given with or
without the last component `kafka-tiered-storage`, which Kafka adds by itself to `rsm.config.dir`. A copy of that tree
under another name is accepted when it holds at least one partition directory.

Refused (UsageError): another scheme, an unknown layout, a directory that is missing or holds no such tree. An archive
that is refused is better than one that seems empty.
"""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from coldlog.archive.layout import ArchiveLayout
from coldlog.archive.local_store import LocalStore
from coldlog.archive.local_tiered_storage import (
    LOCAL_TIERED_STORAGE,
    ROOT_DIRECTORY,
    LocalTieredStorageLayout,
    find_partition_directory,
)
from coldlog.archive.object_store import ObjectStore
from coldlog.errors import UsageError

LAYOUT_NAMES = (LOCAL_TIERED_STORAGE,)


def open_archive(uri: str, layout_name: str) -> ArchiveLayout:
    """The archive's layout over its store; can be pickled and sent to where it is read."""
    if layout_name not in LAYOUT_NAMES:
        raise UsageError(f"unknown archive layout {layout_name!r}; known are: {', '.join(LAYOUT_NAMES)}")
    directory = directory_of(uri)
    if not os.path.isdir(directory):
        raise UsageError(f"no archive at {uri}: {directory} is not a directory that can be reached")
    return LocalTieredStorageLayout(store=_open_tiered_storage(directory, uri))


def open_store(uri: str) -> ObjectStore:
    """The store whose root `uri` names."""
    directory = directory_of(uri)
    if not os.path.isdir(directory):
        raise UsageError(f"nothing at {uri}: {directory} is not a directory that can be reached")
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


def _open_tiered_storage(directory: str, uri: str) -> LocalStore:
    below = os.path.join(directory, ROOT_DIRECTORY)
    if os.path.isdir(below):
        return LocalStore(root=below, uri=uri)
    store = LocalStore(root=directory, uri=uri)
    is_tree = os.path.basename(directory) == ROOT_DIRECTORY or any(
        find_partition_directory(name) for name in store.list_directories("")
    )
    if not is_tree:
        raise UsageError(
            f"no {LOCAL_TIERED_STORAGE} archive at {uri}: {directory} holds neither {ROOT_DIRECTORY} nor a directory "
            "named <topic>-<partition>-<topic id>"
        )
    return store
