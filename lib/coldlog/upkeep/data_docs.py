"""Write the pages about a validation to a folder or a bucket.

The place is `validation.data_docs_uri`, a folder or a prefix of a bucket; without it, `data_docs` below the warehouse.
Great Expectations can only write to a folder. For a bucket, the results of earlier validations, from which pages are
made too, are fetched into a temporary folder, and afterwards the folder's files are put into the bucket. Only objects
below `results/` and `validations/` are ever deleted, when newer results replace them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from coldlog.archive.stores.s3_environment import create_s3_file_system
from coldlog.archive.stores.s3_failures import S3Target, answer_within, error_for
from coldlog.errors import UsageError
from coldlog.runtime.settings import Settings
from coldlog.tables.delta.locations import bucket_and_prefix

if TYPE_CHECKING:
    from s3fs import S3FileSystem

_FOLDER = "data_docs"
_INDEX = "index.html"
_OF_RESULTS = ("results/", "validations/")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDocsPlace:
    """A folder, or `bucket` and a `prefix` in it."""

    uri: str
    folder: Path | None
    bucket: str = ""
    prefix: str = ""

    @property
    def index(self) -> str:
        """The start page."""
        return f"{self.uri.rstrip('/')}/{_INDEX}"


def data_docs_place(settings: Settings) -> DataDocsPlace:
    """Return the place of the pages; a place that is neither a folder nor a bucket raises `UsageError`."""
    uri = settings.validation.data_docs_uri or f"{settings.warehouse_uri.rstrip('/')}/{_FOLDER}"
    place = bucket_and_prefix(uri)
    if place is not None:
        return DataDocsPlace(uri=uri, folder=None, bucket=place[0], prefix=place[1])
    parts = urlsplit(uri)
    if "://" not in uri and not uri.startswith("file:"):
        return DataDocsPlace(uri=uri, folder=Path(uri))
    if parts.scheme == "file":
        return DataDocsPlace(uri=uri, folder=Path(unquote(parts.path)))
    raise UsageError(
        f"validation.data_docs_uri = {uri}: neither a folder nor s3://bucket/prefix; give one of these for the pages"
    )


@contextmanager
def data_docs_folder(place: DataDocsPlace) -> Iterator[Path]:
    """Yield a folder for the pages, with the results of earlier validations; after the block, store its files."""
    if place.folder is not None:
        yield place.folder
        return
    target = S3Target(uri=place.uri, bucket=place.bucket)
    with tempfile.TemporaryDirectory(prefix="coldlog-data-docs-") as temporary:
        folder = Path(temporary)
        try:
            files = create_s3_file_system()
            _fetch_results(files, place, folder)
        except Exception as failure:  # noqa: BLE001 - botocore's errors become errors of coldlog
            raise error_for(answer_within(failure), target) from None
        yield folder
        try:
            _put_pages(files, place, folder)
        except Exception as failure:  # noqa: BLE001 - as above
            raise error_for(answer_within(failure), replace(target, object_name=_INDEX, is_write=True)) from None


def _root(place: DataDocsPlace) -> str:
    return "/".join(part for part in (place.bucket, place.prefix) if part)


def _keys(files: S3FileSystem, place: DataDocsPlace, below: str) -> list[str]:
    """List keys, relative to the place."""
    root = _root(place)
    return [found.removeprefix(f"{root}/") for found in files.find(f"{root}/{below}")]


def _fetch_results(files: S3FileSystem, place: DataDocsPlace, folder: Path) -> None:
    keys = _keys(files, place, _OF_RESULTS[0])
    for key in keys:
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
    if keys:
        files.get([f"{_root(place)}/{key}" for key in keys], [str(folder / key) for key in keys])


def _put_pages(files: S3FileSystem, place: DataDocsPlace, folder: Path) -> None:
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    root = _root(place)
    # The index is written last, after the pages that it links to.
    for group in ([page for page in pages if page != _INDEX], [page for page in pages if page == _INDEX]):
        if group:
            files.put([str(folder / page) for page in group], [f"{root}/{page}" for page in group])
    stale = [key for below in _OF_RESULTS for key in _keys(files, place, below) if key not in set(pages)]
    if stale:
        files.rm([f"{root}/{key}" for key in stale])
