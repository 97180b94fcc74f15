"""s3_writer: how is an object put into a bucket so that it is whole or not there?

Up to `PART_BYTES` by one request; more by a multipart upload, whose parts nobody sees until it is completed, one part
in memory at a time. Each request is repeated as `s3_client` repeats any other. An upload that fails is aborted; the
parts of one whose process was killed stay, unseen and paid for, until a lifecycle rule of the bucket takes them
(AbortIncompleteMultipartUpload, see docs/how-to/archive-on-s3.md).

A completion whose answer was lost is asked for again, and may then be told that there is no such upload: it has
succeeded if the object is there in its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from coldlog.archive.stores.object_names import require_object_name
from coldlog.archive.stores.object_writer import Content
from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_failures import Asked, DamagedAnswerError, status_of
from coldlog.archive.stores.s3_location import parse_s3_uri
from coldlog.archive.stores.s3_store import S3Store
from coldlog.errors import ArchiveError, ColdlogError

PART_BYTES = 16 << 20
"""S3 takes parts of 5 MiB and more, ten thousand at most; a log has 2 GiB at most."""

_TOLD_BY = {
    "put_object": "ETag",
    "create_multipart_upload": "UploadId",
    "upload_part": "ETag",
    "complete_multipart_upload": "ETag",
}
"""Without this an answer is not S3's, whatever its status: a login page has one of 200 too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Writer(S3Store):
    """A WritableStore over the keys below `root/` in `bucket`."""

    part_bytes: int = PART_BYTES

    def put(self, name: str, content: Content) -> None:
        """One request, or an upload in parts."""
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
        """One request."""
        require_object_name(name)
        self._request(name, "delete_object")

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
        """What botocore answers to the operation on that object."""
        key, client = self._key(name), self._client()
        asked = Asked(uri=self.uri, bucket=self.bucket, object_name=name, is_write=True)

        async def attempt(s3: Any) -> Any:
            try:
                answer = await getattr(s3, operation)(Bucket=self.bucket, Key=key, **arguments)
            except Exception as failure:
                if operation == "abort_multipart_upload" and status_of(failure) == 404:
                    return {}
                raise
            if operation in _TOLD_BY and not answer.get(_TOLD_BY[operation]):
                raise DamagedAnswerError("what does not say that anything was written")
            return answer

        return client.start(client.ask(asked, attempt)).result()


def open_s3_writer(uri: str, options: S3Options) -> S3Writer:
    """The store that an s3 uri names; nothing is asked yet."""
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
