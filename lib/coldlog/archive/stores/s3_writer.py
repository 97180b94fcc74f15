"""Write objects to a bucket atomically.

An object of up to `PART_BYTES` is written by one request. A larger one is a multipart upload, with one part in memory
at a time; its parts are invisible until the upload is completed. `s3_client` repeats each request. A failed upload is
aborted. If the process is killed, the parts stay, invisible but billed, until expire_segments aborts the upload
(`iter_uploads`) or a lifecycle rule of the bucket removes it (AbortIncompleteMultipartUpload, see
docs/how-to/archive-on-s3.md).

If the answer to a completion is lost, the completion is repeated, and S3 may answer that the upload does not exist. The
completion has succeeded then if the object exists with the right size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from coldlog.archive.stores.object_names import is_object_name, require_object_name
from coldlog.archive.stores.object_writer import Content, UnfinishedUpload
from coldlog.archive.stores.s3_answers import UploadsPage, read_uploads
from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_failures import DamagedAnswerError, S3Target, status_of
from coldlog.archive.stores.s3_location import parse_s3_uri
from coldlog.archive.stores.s3_store import S3Store
from coldlog.errors import ArchiveError, ColdlogError

PART_BYTES = 16 << 20
"""S3 accepts at most 10,000 parts, of at least 5 MiB; a log has at most 2 GiB."""

_REQUIRED_FIELDS = {
    "put_object": "ETag",
    "create_multipart_upload": "UploadId",
    "upload_part": "ETag",
    "complete_multipart_upload": "ETag",
}
"""An answer without this field is not S3's, even with status 200: it may be a login page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Writer(S3Store):
    """A WritableStore over the keys below `root/` in `bucket`."""

    part_bytes: int = PART_BYTES

    def put(self, name: str, content: Content) -> None:
        """Write the object by one request, or by a multipart upload."""
        require_object_name(name)
        parts = _iter_parts(content, self.part_bytes)
        first = next(parts, b"")
        if content.size_bytes <= self.part_bytes:
            self._request(name, "put_object", Body=first)
            return
        upload_id = self._request(name, "create_multipart_upload")["UploadId"]
        try:
            etags = [self._put_part(name, upload_id, 1, first)]
            for number, part in enumerate(parts, start=2):
                etags.append(self._put_part(name, upload_id, number, part))
            self._complete(name, upload_id, etags, content.size_bytes)
        except BaseException:
            with suppress(ColdlogError):
                self._request(name, "abort_multipart_upload", UploadId=upload_id)
            raise

    def delete(self, name: str) -> None:
        """Delete the object; one request."""
        require_object_name(name)
        self._request(name, "delete_object")

    def iter_uploads(self) -> Iterator[UnfinishedUpload]:
        """The unfinished uploads below the root, page by page; usually one request."""
        start, page = self._start_of(""), UploadsPage()
        while True:
            page = self._uploads_page(start, page)
            for upload in page.uploads:
                name = upload.name[len(start) :]
                if is_object_name(name):
                    yield UnfinishedUpload(name=name, upload_id=upload.upload_id, begun_ms=upload.begun_ms)
            if page.next_markers is None:
                return

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Abort the upload; one request."""
        require_object_name(upload.name)
        self._request(upload.name, "abort_multipart_upload", UploadId=upload.upload_id)

    def _uploads_page(self, start: str, before: UploadsPage) -> UploadsPage:
        client = self._client()

        async def attempt(s3: Any) -> UploadsPage:
            markers = before.next_markers or {}
            answer = await s3.list_multipart_uploads(Bucket=self.bucket, Prefix=start, **markers)
            return read_uploads(answer, start, before)

        return client.start(client.ask(S3Target(uri=self.uri, bucket=self.bucket), attempt)).result()

    def _put_part(self, name: str, upload_id: str, number: int, part: bytes) -> dict[str, object]:
        answer = self._request(name, "upload_part", UploadId=upload_id, PartNumber=number, Body=part)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _complete(self, name: str, upload_id: str, etags: list[dict[str, object]], size_bytes: int) -> None:
        try:
            self._request(name, "complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": etags})
        except ColdlogError:
            with suppress(ArchiveError):
                if self.size_bytes(name) == size_bytes:
                    return
            raise

    def _request(self, name: str, operation: str, **arguments: object) -> Any:
        """botocore's answer to an operation on this object."""
        key, client = self._key(name), self._client()
        target = S3Target(uri=self.uri, bucket=self.bucket, object_name=name, is_write=True)

        async def attempt(s3: Any) -> Any:
            try:
                answer = await getattr(s3, operation)(Bucket=self.bucket, Key=key, **arguments)
            except Exception as failure:
                if operation == "abort_multipart_upload" and status_of(failure) == 404:
                    return {}
                raise
            if operation in _REQUIRED_FIELDS and not answer.get(_REQUIRED_FIELDS[operation]):
                raise DamagedAnswerError("an answer that does not confirm the write")
            return answer

        return client.start(client.ask(target, attempt)).result()


def open_s3_writer(uri: str, options: S3Options) -> S3Writer:
    """The store of an s3 uri; sends no request."""
    location = parse_s3_uri(uri)
    return S3Writer(bucket=location.bucket, root=location.prefix, uri=uri, options=options)


def _iter_parts(content: Content, part_bytes: int) -> Iterator[bytes]:
    waiting = bytearray()
    for piece in content.iter_pieces():
        waiting += piece
        while len(waiting) > part_bytes:
            yield bytes(waiting[:part_bytes])
            del waiting[:part_bytes]
    yield bytes(waiting)
