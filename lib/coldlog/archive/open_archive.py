"""Open the store and layout that the settings `archive.uri` and `archive.layout` name.

The only module that knows all of them. A uri is a path, `file:///path` or `s3://bucket/prefix`. For LocalTieredStorage,
the uri may or may not include the last component `kafka-tiered-storage`, which Kafka adds to `rsm.config.dir`. A copy
of that tree under another name is accepted if it has at least one partition directory. A mirror of log directories must
have one too, at the place given by `LayoutOptions`. An archive of the Aiven plugin must have a topic's directory or be
empty.

Refused (UsageError): another scheme, an unknown layout, a directory that is missing or does not hold such a tree.
Refusing a wrong directory is better than showing it as an empty archive.
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
    """What some layouts need in addition to their uri; see the settings of the same names."""

    above_partitions: str = ""
    key_prefix: str = ""


_NO_OPTIONS = LayoutOptions()
_S3_DEFAULTS = S3Options()


def open_archive(
    uri: str, layout_name: str, options: LayoutOptions = _NO_OPTIONS, s3: S3Options = _S3_DEFAULTS
) -> ArchiveLayout:
    """The archive's layout over its store; can be pickled and sent to the process that reads it."""
    if layout_name not in _OPENERS:
        raise UsageError(f"unknown archive layout {layout_name!r}; use one of: {', '.join(LAYOUT_NAMES)}")
    store = _find_store(uri, "archive", s3)
    if isinstance(store, S3Store):
        return _open_in_bucket(store, layout_name, options)
    return _OPENERS[layout_name](store, options)


def open_store(uri: str, s3: S3Options = _S3_DEFAULTS) -> ObjectStore:
    """The store with `uri` as its root."""
    store = _find_store(uri, "directory", s3)
    if isinstance(store, S3Store) and not store.has_any_object():
        raise UsageError(f"no directory at {uri}: the bucket {store.bucket} has no key with this prefix")
    return store


def open_archive_for_writing(uri: str, s3: S3Options = _S3_DEFAULTS, *, may_begin: bool = True) -> WritableStore:
    """The tree of a LocalTieredStorage archive. A missing directory is created if `may_begin`; otherwise the archive
    was written before and its disk is not mounted (`RetriableError`)."""
    store: LocalWriter | S3Writer
    store = open_s3_writer(uri, s3) if is_s3_uri(uri) else LocalWriter(root=directory_of(uri), uri=uri)
    if store.root.rpartition("/")[2] != ROOT_DIRECTORY:
        exists = isinstance(store, S3Writer) or os.path.isdir(store.root)
        is_tree = exists and any(find_partition_directory(name) for name in store.iter_directories(""))
        store = store if is_tree else store.below(ROOT_DIRECTORY)
    if isinstance(store, LocalWriter):
        if may_begin:
            store.make_root()
        store.require_root()
    return store


@lru_cache(maxsize=64)
def _open_in_bucket(store: S3Store, layout_name: str, options: LayoutOptions) -> ArchiveLayout:
    """Open an archive once per process: a lookup opens the archive for every batch and then requests only the batch."""
    return _OPENERS[layout_name](store, options)


def _find_store(uri: str, noun: str, s3: S3Options) -> RootedStore:
    if is_s3_uri(uri):
        return open_s3_store(uri, s3)
    directory = directory_of(uri)
    if not os.path.isdir(directory):
        raise UsageError(f"no {noun} at {uri}: {directory} is not a directory that can be reached")
    return LocalStore(root=directory, uri=uri)


def directory_of(uri: str) -> str:
    """The absolute path of a path or a file uri."""
    parts = urlsplit(uri) if "://" in uri or uri.startswith("file:") else None
    if parts is None:
        path = uri
    elif parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        path = unquote(parts.path)
    else:
        # The message does not repeat the uri: it may contain a password or a signature.
        raise UsageError(
            f"cannot open an archive with {parts.scheme}://; use a directory, file:///directory or s3://bucket/prefix"
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
            f"no {LOCAL_TIERED_STORAGE} archive at {store.uri}: it has neither {ROOT_DIRECTORY} nor a directory "
            "named <topic>-<partition>-<topic id>"
        )
    return LocalTieredStorageLayout(store=store)


def _open_log_directories(store: RootedStore, options: LayoutOptions) -> ArchiveLayout:
    layout = LogDirectoriesLayout(store=store, above_partitions=options.above_partitions)
    if not layout.holds_partitions():
        above = f"{layout.above_partitions}/" if layout.above_partitions else ""
        raise UsageError(
            f"no {LOG_DIRECTORIES} archive at {store.uri}: it has no directory {above}<topic>-<partition>; "
            "name the directories between archive.uri and the partitions in archive.above_partitions"
        )
    return layout


def _open_aiven(store: RootedStore, options: LayoutOptions) -> ArchiveLayout:
    layout = AivenLayout(store=store, key_prefixes=read_key_prefixes(options.key_prefix))
    require_keys()
    if not layout.holds_topics():
        raise UsageError(
            f"no {AIVEN} archive at {store.uri}: it is not empty and has no directory <topic>-<topic id> after "
            "archive.key_prefix; set archive.key_prefix to the plugin's key.prefix"
        )
    return layout


_OPENERS: Mapping[str, Callable[[RootedStore, LayoutOptions], ArchiveLayout]] = {
    LOCAL_TIERED_STORAGE: _open_local_tiered_storage,
    LOG_DIRECTORIES: _open_log_directories,
    AIVEN: _open_aiven,
}
LAYOUT_NAMES = tuple(_OPENERS)
