"""Find the archive that was meant, if `archive.uri` or `archive.layout` is wrong.

It tries these places, in this order: the place itself in another layout; the directories above it; the directories in
the nearest one that exists, those with a similar name first, and the directories in these. A place counts if a layout
opens it and finds a segment. At most `_MOST_PLACES` are opened, because a bucket or a large disk may be named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice

from coldlog.archive.layouts.layout import LayoutOptions
from coldlog.archive.open_archive import directory_of, open_archive, open_store
from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_location import is_s3_uri, parse_s3_uri
from coldlog.errors import ColdlogError, UsageError
from coldlog.model.layout_names import LayoutName

_MOST_PLACES = 60
_MOST_ABOVE = 3
_MOST_DIRECTORIES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundArchive:
    """A place that holds segments, and the layout that reads them."""

    uri: str
    layout: str


def advise(uri: str, layout_name: str, options: LayoutOptions, s3: S3Options) -> str:
    """Say what to do about an archive that could not be opened."""
    root = _root_of(uri)
    found = find_archive_near(uri, layout_name, options, s3)
    if found is None:
        is_there = is_s3_uri(uri) or os.path.isdir(root)
        return "no archive is near it" if is_there else _missing_advice(root)
    changes = [] if found.uri == root else [f"archive.uri={found.uri}"]
    changes += [] if found.layout == layout_name else [f"archive.layout={found.layout}"]
    where = "this place" if found.uri == root else found.uri
    return f"{where} has segments: set {' and '.join(changes)}"


def find_archive_near(uri: str, layout_name: str, options: LayoutOptions, s3: S3Options) -> FoundArchive | None:
    """Return the nearest place that has segments; None if there is none, or nothing can be listed."""
    layouts = sorted(LayoutName, key=lambda layout: layout != layout_name)
    try:
        for place in islice(_iter_places(_root_of(uri), s3), _MOST_PLACES):
            for layout in layouts:
                if _has_segments(place, layout, options if layout == layout_name else LayoutOptions(), s3):
                    return FoundArchive(uri=place, layout=layout)
    except (ColdlogError, OSError):
        pass  # the places could not be listed: what is wrong has been said already
    return None


def _has_segments(place: str, layout: str, options: LayoutOptions, s3: S3Options) -> bool:
    try:
        archive = open_archive(place, layout, options, s3)
        directories = archive.list_partition_directories().directories
        return any(archive.list_segments(each).segments for each in directories[:3])
    except (ColdlogError, OSError):
        return False


def _root_of(uri: str) -> str:
    """The uri without a `/` at its end; a path for a directory of this machine."""
    if not is_s3_uri(uri):
        return directory_of(uri)
    location = parse_s3_uri(uri)
    return f"s3://{location.bucket}/{location.prefix}".rstrip("/")


def _iter_places(root: str, s3: S3Options) -> Iterator[str]:
    yield root
    above = list(_iter_above(root))
    existing = next((each for each in (root, *above) if _is_there(each, s3)), None)
    yield from (each for each in above[:_MOST_ABOVE] if is_s3_uri(each) or os.path.isdir(each))
    if existing in (None, "/"):
        return
    missing = root[len(existing) + 1 :].partition("/")[0]
    nearest = _directories_in(existing, missing, s3)
    yield from nearest
    for each in nearest:
        yield from _directories_in(each, missing, s3)


def _iter_above(root: str) -> Iterator[str]:
    """The directories above, up to the bucket. The root of the file system is left out: it holds anything."""
    least = len("s3://") + 1 if is_s3_uri(root) else 1
    while len(root := root.rpartition("/")[0]) >= least:
        yield root


def _is_there(place: str, s3: S3Options) -> bool:
    if not is_s3_uri(place):
        return os.path.isdir(place)
    try:
        open_store(place, s3)
    except UsageError:  # no key begins with it
        return False
    return True


def _directories_in(place: str, similar_to: str, s3: S3Options) -> list[str]:
    """The directories in a place, those whose name is similar first."""
    try:
        names = list(islice(open_store(place, s3).list_directories(""), _MOST_DIRECTORIES))
    except (ColdlogError, OSError):
        return []
    return [f"{place}/{name}" for name in sorted(names, key=lambda name: (-_similarity(name, similar_to), name))]


def _similarity(name: str, other: str) -> float:
    return SequenceMatcher(None, name, other).ratio() if other else 0.0


def _missing_advice(root: str) -> str:
    existing = next(each for each in (*_iter_above(root), "/") if os.path.exists(each))
    name = root[len(existing.rstrip("/")) + 1 :].partition("/")[0]
    if os.path.exists(root):
        return f"{root} is a file: set archive.uri to a folder"
    if not os.path.isdir(existing):
        return f"{existing} is a file: correct archive.uri"
    return f"{existing} has no {name!r}: correct archive.uri, or mount the disk that has it"
