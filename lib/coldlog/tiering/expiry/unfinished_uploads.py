"""List the unfinished uploads of an archive once, and abort those that are too old.

A bucket keeps the parts of an upload whose writer was killed, and shows them in no listing of objects. Only a store
with such uploads is asked. If they cannot be listed, because the store does not allow it or does not know the request,
nothing is aborted, and `why_unlisted` says so: expiry does not need them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from coldlog.archive.stores.object_writer import UnfinishedUpload, UploadingStore, WritableStore
from coldlog.errors import ColdlogError


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUploads:
    """The uploads of a run, by the directory of their object."""

    store: UploadingStore | None = None
    by_directory: dict[str, list[UnfinishedUpload]] = field(default_factory=lambda: defaultdict(list))
    why_unlisted: str = ""

    def below(self, directory: str) -> Sequence[UnfinishedUpload]:
        """Return the uploads of objects directly below a directory."""
        return self.by_directory.get(directory, ())

    def abort(self, upload: UnfinishedUpload) -> None:
        """Remove what was uploaded."""
        if self.store is not None:
            self.store.abort_upload(upload)


def list_unfinished_uploads(archive: WritableStore) -> UnfinishedUploads:
    """List the unfinished uploads, if the archive's store has such."""
    if not isinstance(archive, UploadingStore):
        return UnfinishedUploads()
    found = UnfinishedUploads(store=archive)
    try:
        for upload in archive.iter_uploads():
            found.by_directory[upload.name.rpartition("/")[0]].append(upload)
    except ColdlogError as refused:
        return UnfinishedUploads(why_unlisted=refused.text_with_notes)
    return found
