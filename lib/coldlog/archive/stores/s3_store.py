"""Read an archive in a bucket of S3, or of a server with the same protocol.

Names are keys relative to the prefix. Credentials, endpoint, region and addressing style are those of the environment
and the AWS profile of the reading process (`s3_client`). The store has none of them and can be pickled.

Listings use a delimiter, one page at a time, so that listing the partition directories does not list their objects. A
bucket has no directories. A directory exists if a key contains it, or as a marker, the key `directory/`; a marker is an
object only if it has content. Keys with a part that no name can have (empty, `.` or `..`) are not listed one by one:
they appear as one object of 0 bytes whose name ends in `/` and cannot be read.

A range of up to `part_bytes` is one request. A longer range is fetched in parts of this size, several at once, into one
buffer; all parts are of the same version. Sequential reads are fetched in advance (`read_ahead`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import numpy as np

from coldlog.archive.stores.object_names import is_object_name, require_object_name, require_prefix, require_range
from coldlog.archive.stores.object_store import Level, ObjectInfo
from coldlog.archive.stores.read_ahead import WALKED_BYTES, Walk
from coldlog.archive.stores.s3_answers import ListedKey, ListedPage
from coldlog.archive.stores.s3_client import FetchedRange, S3Client, S3Options, client_of_process
from coldlog.archive.stores.s3_failures import S3Target
from coldlog.archive.stores.s3_location import parse_s3_uri
from coldlog.archive.stores.stored_file import StoredFile

_AFTER_EVERY_OBJECT = 2**53
"""An object has at most 50 TiB. Servers in some languages cannot handle larger positions than this."""
_MARKER_ENDS = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Store:
    """An ObjectStore over the keys below `root/` in `bucket`; `uri` is the root as the user wrote it."""

    bucket: str
    root: str
    uri: str
    options: S3Options = field(default_factory=S3Options)

    def list_directories(self, prefix: str) -> list[str]:
        """Common prefixes directly below `prefix`, and markers of empty directories."""
        return sorted(self.iter_directories(prefix))

    def iter_directories(self, prefix: str) -> Iterator[str]:
        """The same, page by page, in S3's order (with the `/` at the end of each)."""
        for page in self._iter_pages(prefix):
            yield from self._directories_of(page, prefix)

    def iter_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Keys directly below `prefix`, page by page, and one object for each part that cannot be a name."""
        for page in self._iter_pages(prefix):
            yield from self._objects_of(page, prefix)

    def list_level(self, prefix: str, beginnings: Collection[str] | None = None) -> Level:
        """Send one request for each page. With `beginnings`, send at least one for each of them."""
        directories: list[str] = []
        objects: list[ObjectInfo] = []
        for beginning in [""] if beginnings is None else sorted(beginnings):
            for page in self._iter_pages(prefix, beginning):
                directories += self._directories_of(page, prefix)
                objects += self._objects_of(page, prefix)
        return sorted(directories), objects

    def size_bytes(self, name: str) -> int:
        """The object's current size; one request."""
        require_object_name(name)
        client = self._client()
        return client.start(client.fetch_size(self._target(name), self._key(name))).result()

    def read_range(self, name: str, position: int, length: int, until: int | None = None) -> memoryview:
        """A copy of the bytes from `position` on."""
        require_object_name(name)
        require_range(position, length)
        if not length or position >= _AFTER_EVERY_OBJECT:
            self.size_bytes(name)
            return memoryview(b"")
        reader = _ObjectReader(client=self._client(), target=self._target(name), key=self._key(name))
        return reader.read(position, length, until)

    def open_file(self, _: str) -> StoredFile | None:
        """There are no files."""
        return None

    def has_directory(self, name: str) -> bool:
        """A key below the directory exists, or its marker; one request."""
        require_object_name(name)
        page = self._page(self._key(name) + "/", most_keys=1)
        return bool(page.keys or page.prefixes)

    def below(self, directory: str) -> Self:
        """The store of the keys below a directory in this store."""
        require_object_name(directory)
        return replace(self, root=self._key(directory))

    def has_any_object(self) -> bool:
        """A key below the root exists; one request. A missing bucket is a `UsageError`."""
        page = self._page(self._start_of(""), most_keys=1)
        return bool(page.keys or page.prefixes)

    def _directories_of(self, page: ListedPage, prefix: str) -> Iterator[str]:
        start = self._start_of(prefix)
        return filter(is_object_name, (_relative(key[:-1], start, prefix) for key in page.prefixes))

    def _objects_of(self, page: ListedPage, prefix: str) -> list[ObjectInfo]:
        start = self._start_of(prefix)
        found = [
            self._object_info(listed, start, prefix) for listed in page.keys if listed.key != start or listed.size_bytes
        ]
        unnamed = (_relative(key, start, prefix) for key in page.prefixes)
        found += [
            ObjectInfo(name=name, size_bytes=0, modified_ms=0)
            for name in unnamed
            if not is_object_name(name.removesuffix(_MARKER_ENDS))
        ]
        return sorted(found)

    def _iter_pages(self, prefix: str, beginning: str = "") -> Iterator[ListedPage]:
        start = self._start_of(prefix) + beginning
        page = self._page(start)
        yield page
        while page.next_token:
            page = self._page(start, token=page.next_token)
            yield page

    def _page(self, start: str, token: str = "", most_keys: int = 0) -> ListedPage:
        client = self._client()
        return client.start(client.list_page(self._target(), start, token, most_keys)).result()

    def _object_info(self, listed: ListedKey, start: str, prefix: str) -> ObjectInfo:
        name = _relative(listed.key, start, prefix)
        return ObjectInfo(name=name, size_bytes=listed.size_bytes, modified_ms=listed.modified_ms)

    def _client(self) -> S3Client:
        return client_of_process(self.options)

    def _target(self, name: str = "") -> S3Target:
        return S3Target(uri=self.uri, bucket=self.bucket, object_name=name)

    def _key(self, name: str) -> str:
        return f"{self.root}/{name}" if self.root else name

    def _start_of(self, prefix: str) -> str:
        require_prefix(prefix)
        whole = self._key(prefix) if prefix else self.root
        return f"{whole}/" if whole else ""


@dataclass(slots=True, kw_only=True)
class _LastRead:
    """The last large read of a thread; the next read may continue it."""

    place: tuple[str, str]
    start: int
    stop: int
    walk: Walk | None

    def continues(self, place: tuple[str, str], position: int) -> bool:
        """A read at `position` begins inside this read or directly after it."""
        if self.place != place:
            return False
        return self.walk.continues(position) if self.walk is not None else self.start < position <= self.stop


@dataclass(frozen=True, slots=True, kw_only=True)
class _ObjectReader:
    """Reads of one object by one thread."""

    client: S3Client
    target: S3Target
    key: str

    def read(self, position: int, length: int, until: int | None) -> memoryview:
        """Read from the walk that continues at `position`, or by new requests. A read with `until` begins a walk."""
        last: _LastRead | None = getattr(self.client.per_thread, "last", None)
        if last is None or not last.continues(self._place, position):
            return self._read_anew(position, length, until, is_walk=position == 0 or until is not None)
        if last.walk is None:
            return self._read_anew(position, length, until, is_walk=True)
        # After an error, or at the end, no walk is kept.
        self.client.per_thread.last = None
        try:
            window = last.walk.read(position, length, until)
        except BaseException:
            last.walk.end()
            raise
        if last.walk.is_done:
            last.walk.end()
        else:
            self.client.per_thread.last = last
        return window

    @property
    def _place(self) -> tuple[str, str]:
        return self.target.bucket, self.key

    @property
    def _part_bytes(self) -> int:
        return self.client.options.part_bytes

    def _read_anew(self, position: int, length: int, until: int | None, *, is_walk: bool) -> memoryview:
        request = self.client.fetch_range(self.target, self.key, position, min(length, self._part_bytes))
        first = self.client.start(request).result()
        window = self._complete(first, position, length)
        if length >= WALKED_BYTES:
            self._remember(first, window, position, until, is_walk=is_walk)
        return window

    def _complete(self, first: FetchedRange, position: int, length: int) -> memoryview:
        """The whole range: the bytes after the first part are fetched in further parts, several at once."""
        stop = min(position + length, first.object_bytes)
        begin = position + len(first.content)
        if begin >= stop:
            return first.content
        whole = np.empty(stop - position, dtype=np.uint8).data
        whole[: begin - position] = first.content
        pending: deque[Future[None]] = deque()
        try:
            for start in range(begin, stop, self._part_bytes):
                if len(pending) == self.client.options.parts_at_once:
                    pending.popleft().result()
                part = whole[start - position : min(start + self._part_bytes, stop) - position]
                pending.append(self._start_part(first.etag, start, part))
            while pending:
                pending.popleft().result()
        finally:
            for request in pending:
                request.cancel()
        return whole.toreadonly()

    def _start_part(self, etag: str, position: int, part: memoryview) -> Future[None]:
        return self.client.start(self.client.fetch_part(self.target, self.key, position, part, etag))

    def _remember(
        self, first: FetchedRange, window: memoryview, position: int, until: int | None, *, is_walk: bool
    ) -> None:
        last: _LastRead | None = getattr(self.client.per_thread, "last", None)
        if last is not None and last.walk is not None:
            last.walk.end()
        self.client.per_thread.last = None
        stop, options = position + len(window), self.client.options
        if stop >= (first.object_bytes if until is None else min(first.object_bytes, until)):
            return
        walk = None
        if is_walk and options.read_ahead_bytes:
            walk = Walk(
                start_part=partial(self._start_part, first.etag),
                object_bytes=first.object_bytes,
                until=until,
                window=window,
                window_start=position,
                block_bytes=min(options.part_bytes, options.read_ahead_bytes),
                ahead_bytes=options.read_ahead_bytes,
            )
        self.client.per_thread.last = _LastRead(place=self._place, start=position, stop=stop, walk=walk)


def open_s3_store(uri: str, options: S3Options) -> S3Store:
    """The store of an s3 uri; sends no request."""
    location = parse_s3_uri(uri)
    return S3Store(bucket=location.bucket, root=location.prefix, uri=uri, options=options)


def _relative(key: str, start: str, prefix: str) -> str:
    """The name of a key that begins with `start`, the key of `prefix`."""
    return f"{prefix}/{key[len(start) :]}" if prefix else key[len(start) :]
