"""open_archive: which store and layout does a setting `archive.uri` with `archive.layout` mean?

The one place that knows them all. A uri is a path, `file:///path` or `s3://bucket/prefix`. For LocalTieredStorage it
may be given with or without the last component `kafka-tiered-storage`, which Kafka adds by itself to `rsm.config.dir`.
A copy of that tree under another name is accepted when it holds at least one partition directory. A mirror of log
directories must hold one too, where `LayoutOptions` say. An archive of the Aiven plugin holds a topic's
directory, or nothing at all yet.

Refused (UsageError): another scheme, an unknown layout, a directory that is missing or holds no such tree. An archive
that is refused is better than one that seems empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote, urlsplit

from coldlog.archive.layouts.aiven_keys import require_keys
from coldlog.archive.layouts.aiven_layout import AIVEN, AivenLayout, read_key_prefixes
from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.layouts.local_tiered_storage import (
    LOCAL_TIERED_STORAGE,
    ROOT_DIRECTORY,
    LocalTieredStorageLayout,
    find_partition_directory,
)
from coldlog.archive.layouts.log_directories_layout import LOG_DIRECTORIES, LogDirectoriesLayout
from coldlog.archive.stores.local_store import LocalStore
from coldlog.archive.stores.local_writer import LocalWriter
from coldlog.archive.stores.object_store import ObjectStore, RootedStore
from coldlog.archive.stores.object_writer import WritableStore
from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_location import is_s3_uri
from coldlog.archive.stores.s3_store import S3Store, open_s3_store
from coldlog.archive.stores.s3_writer import S3Writer, open_s3_writer
from coldlog.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """What some layouts need to be told beside their uri; see the settings of the same names."""

    above_partitions: str = ""
    key_prefix: str = ""


_NO_OPTIONS = LayoutOptions()
_S3_DEFAULTS = S3Options()


def open_archive(
    uri: str, layout_name: str, options: LayoutOptions = _NO_OPTIONS, s3: S3Options = _S3_DEFAULTS
) -> ArchiveLayout:
    """The archive's layout over its store; can be pickled and sent to where it is read."""
    if layout_name not in _OPENERS:
        raise UsageError(f"unknown archive layout {layout_name!r}; known are: {', '.join(LAYOUT_NAMES)}")
    store = _find_store(uri, "archive", s3)
    if isinstance(store, S3Store):
        return _open_in_bucket(store, layout_name, options)
    return _OPENERS[layout_name](store, options)


def open_store(uri: str, s3: S3Options = _S3_DEFAULTS) -> ObjectStore:
    """The store whose root `uri` names."""
    store = _find_store(uri, "directory", s3)
    if isinstance(store, S3Store) and not store.has_any_object():
        raise UsageError(f"no directory at {uri}: the bucket {store.bucket} holds no key that begins so")
    return store


def open_archive_for_writing(uri: str, s3: S3Options = _S3_DEFAULTS, *, may_begin: bool = True) -> WritableStore:
    """The tree of a LocalTieredStorage archive; a directory that is not there yet is made, or, where the archive was
    written to before, is a disk that is not mounted now (`RetriableError`)."""
    store: LocalWriter | S3Writer
    store = open_s3_writer(uri, s3) if is_s3_uri(uri) else LocalWriter(root=directory_of(uri), uri=uri)
    if store.root.rpartition("/")[2] != ROOT_DIRECTORY:
        is_there = isinstance(store, S3Writer) or os.path.isdir(store.root)
        is_tree = is_there and any(find_partition_directory(name) for name in store.iter_directories(""))
        store = store if is_tree else store.below(ROOT_DIRECTORY)
    if isinstance(store, LocalWriter):
        if may_begin:
            store.make_root()
        store.require_root()
    return store


@lru_cache(maxsize=64)
def _open_in_bucket(store: S3Store, layout_name: str, options: LayoutOptions) -> ArchiveLayout:
    """Once for each process, so that a lookup, which opens the archive for every batch, asks for the batch alone."""
    return _OPENERS[layout_name](store, options)


def _find_store(uri: str, what: str, s3: S3Options) -> RootedStore:
    if is_s3_uri(uri):
        return open_s3_store(uri, s3)
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
        # Not repeated: addresses of the web hold passwords and signatures.
        raise UsageError(
            f"cannot open an archive by {parts.scheme}://; a directory, file:///directory or s3://bucket/prefix is "
            "expected"
        )
    if not path or "\0" in path:
        raise UsageError(f"not the path of a directory: {path!r}")
    return os.path.abspath(path)


def _open_local_tiered_storage(store: RootedStore, _: LayoutOptions) -> ArchiveLayout:
    if store.has_directory(ROOT_DIRECTORY):
        return LocalTieredStorageLayout(store=store.below(ROOT_DIRECTORY))
    is_tree = store.root.rpartition("/")[2] == ROOT_DIRECTORY or any(
        find_partition_directory(name) for name in store.iter_directories("")
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


def _open_aiven(store: RootedStore, options: LayoutOptions) -> ArchiveLayout:
    layout = AivenLayout(store=store, key_prefixes=read_key_prefixes(options.key_prefix))
    require_keys()
    if not layout.holds_topics():
        raise UsageError(
            f"no {AIVEN} archive at {store.uri}: it is not empty and holds no directory <topic>-<topic id> whose name "
            "begins with archive.key_prefix, which is key.prefix of the plugin"
        )
    return layout


_OPENERS: Mapping[str, Callable[[RootedStore, LayoutOptions], ArchiveLayout]] = {
    LOCAL_TIERED_STORAGE: _open_local_tiered_storage,
    LOG_DIRECTORIES: _open_log_directories,
    AIVEN: _open_aiven,
}
LAYOUT_NAMES = tuple(_OPENERS)
