"""Open the store and layout that the settings `archive.uri` and `archive.layout` name.

`LayoutName` lists the layouts; the module of a layout is imported when an archive of it is opened. A uri is a path,
`file:///path` or `s3://bucket/prefix`. For LocalTieredStorage, the uri may or may not include the last component
`kafka-tiered-storage`, which Kafka adds to `rsm.config.dir`. A copy of that tree under another name is accepted if it
has at least one partition directory. A mirror of log directories must have one too, at the place given by
`LayoutOptions`. An archive of the Aiven plugin must have a topic's directory or be empty.

Refused (UsageError): another scheme, an unknown layout, a directory that is missing or does not hold such a tree.
Refusing a wrong directory is better than showing it as an empty archive.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from urllib.parse import unquote, urlsplit

from coldlog.archive.layouts.layout import ArchiveLayout, LayoutOptions, NoArchiveError
from coldlog.archive.layouts.local_tiered_storage import ROOT_DIRECTORY, find_partition_directory
from coldlog.archive.stores.local_store import LocalStore
from coldlog.archive.stores.local_writer import LocalWriter
from coldlog.archive.stores.object_store import ObjectStore, RootedStore
from coldlog.archive.stores.object_writer import WritableStore
from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_location import is_s3_uri
from coldlog.archive.stores.s3_store import S3Store, open_s3_store
from coldlog.archive.stores.s3_writer import S3Writer, open_s3_writer
from coldlog.errors import UsageError
from coldlog.model.layout_names import LayoutName

_NO_OPTIONS = LayoutOptions()
_S3_DEFAULTS = S3Options()


def open_archive(
    uri: str, layout_name: str, options: LayoutOptions = _NO_OPTIONS, s3: S3Options = _S3_DEFAULTS
) -> ArchiveLayout:
    """The archive's layout over its store; can be pickled and sent to the process that reads it."""
    layout = next((known for known in LayoutName if known == layout_name), None)
    if layout is None:
        raise UsageError(f"unknown archive layout {layout_name!r}; use one of: {', '.join(LayoutName)}")
    store = _find_store(uri, "archive", s3)
    if isinstance(store, S3Store):
        return _open_in_bucket(store, layout, options)
    return _open_layout(store, layout, options)


def open_store(uri: str, s3: S3Options = _S3_DEFAULTS) -> ObjectStore:
    """The store with `uri` as its root."""
    store = _find_store(uri, "directory", s3)
    if isinstance(store, S3Store) and not store.has_any_object():
        raise NoArchiveError(f"no directory at {uri}: the bucket {store.bucket} has no key with this prefix")
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


def _open_layout(store: RootedStore, layout: LayoutName, options: LayoutOptions) -> ArchiveLayout:
    module = import_module(f"coldlog.archive.layouts.{layout.module}")
    open_layout: Callable[[RootedStore, LayoutOptions], ArchiveLayout] = module.open_layout
    return open_layout(store, options)


@lru_cache(maxsize=64)
def _open_in_bucket(store: S3Store, layout: LayoutName, options: LayoutOptions) -> ArchiveLayout:
    """Open an archive once per process: a lookup opens the archive for every batch and then requests only the batch."""
    return _open_layout(store, layout, options)


def _find_store(uri: str, noun: str, s3: S3Options) -> RootedStore:
    if is_s3_uri(uri):
        return open_s3_store(uri, s3)
    directory = directory_of(uri)
    if not os.path.isdir(directory):
        raise NoArchiveError(f"no {noun} at {uri}: {directory} is not a directory that can be reached")
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
