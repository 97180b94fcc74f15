"""Move tables of a warehouse aside, in a folder or in a bucket.

A folder of a table is renamed, which is one step. A bucket has no such step. There, all objects are copied first. Then
copies are listed and compared with the originals, and only then the originals are deleted: the manifests, then
`partition_metadata`, then the others, and each table's log before its other files. So readers and jobs see the whole
tables, or refuse them. A run that is killed leaves a complete copy of each table, here or aside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from coldlog.archive.stores.local_writer import sync_directory
from coldlog.archive.stores.s3_environment import s3_client
from coldlog.archive.stores.s3_failures import S3Target, are_credentials_refused, error_for, status_of
from coldlog.errors import ColdlogError, UsageError
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.locations import bucket_and_prefix, local_folder, table_location
from coldlog.tables.delta.log_check import LOG_FOLDER
from coldlog.tables.delta.manifest import MANIFEST_FOLDER, at_once

_REFUSED = 403
_FACTS = re.compile(r"[0-9]{20}\.crc")
_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint\.")
_COMMIT = re.compile(r"([0-9]{20})\.json")
_LAST = 10**20


class TablePlace(Protocol):
    """The place of the tables of a warehouse."""

    @property
    def is_there(self) -> bool:
        """Whether the place exists."""

    def has(self, name: str) -> bool:
        """Whether there is anything of a table."""

    def location(self, name: str) -> str:
        """Where a table is, for readers without Spark."""

    def move(self, names: Sequence[str], moment: str, confirm: Callable[[], None]) -> str:
        """Move tables to a new place and return it. `confirm` raises if another job writes the warehouse now."""


def open_table_place(uri: str) -> TablePlace:
    """Open the place of a warehouse; `UsageError` if it is neither in a folder nor in a bucket."""
    place, folder = bucket_and_prefix(uri), local_folder(uri)
    if place is not None:
        return BucketPlace(uri=uri, bucket=place[0], prefix=place[1])
    if folder is None:
        raise UsageError(f"{uri} is neither a folder nor in a bucket of S3; copy the warehouse to one of them")
    return FolderPlace(folder=folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderPlace:
    """Tables below a folder of the system."""

    folder: str

    @property
    def is_there(self) -> bool:
        return os.path.isdir(self.folder)

    def has(self, name: str) -> bool:
        return os.path.lexists(os.path.join(self.folder, name))

    def location(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def move(self, names: Sequence[str], moment: str, confirm: Callable[[], None]) -> str:
        """Rename each folder, in the given order."""
        aside = f"{self.folder.rstrip('/')}.replaced-{moment}"
        try:
            os.mkdir(aside)
            for name in names:
                os.rename(os.path.join(self.folder, name), os.path.join(aside, name))
            for changed in (aside, self.folder, os.path.dirname(os.path.abspath(self.folder))):
                sync_directory(changed)
        except OSError as refused:
            raise UsageError(f"the tables of {self.folder} cannot be moved to {aside}: {refused.strerror}") from refused
        return aside


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlace:
    """Tables below a prefix of a bucket."""

    uri: str
    bucket: str
    prefix: str
    client: Any = field(default_factory=s3_client)

    @property
    def is_there(self) -> bool:
        return bool(self._list("", most=1))

    def has(self, name: str) -> bool:
        return bool(self._list(f"{name}/", most=1))

    def location(self, name: str) -> str:
        return table_location(self.uri, name)

    def move(self, names: Sequence[str], moment: str, confirm: Callable[[], None]) -> str:
        """Copy all objects, compare the copies, and delete the originals."""
        originals = {name: self._list(f"{name}/") for name in names}
        aside = f"{self.prefix}.replaced-{moment}"

        def copy(key: str) -> None:
            source = {"Bucket": self.bucket, "Key": f"{self._root}{key}"}
            self._ask("copy_object", Key=f"{aside}/{key}", CopySource=source)

        at_once(copy, [key for keys in originals.values() for key in keys])
        for name, keys in originals.items():
            if self._list(f"{name}/", root=f"{aside}/") != keys or self._list(f"{name}/") != keys:
                raise ColdlogError(
                    f"{name} in {self.uri} has changed while it was copied to {aside}, so nothing was deleted; stop "
                    "all jobs that write there, and run again"
                )
        confirm()
        # Every reader needs `partition_metadata`, also of a warehouse that has no manifest.
        ordered = sorted(names, key=lambda name: (name != MANIFEST_FOLDER, name != PARTITION_METADATA.name))
        for name in ordered:
            for group in _in_order_of_deletion(originals[name]):
                at_once(lambda key: self._ask("delete_object", Key=f"{self._root}{key}"), group)
        return f"s3://{self.bucket}/{aside}"

    @property
    def _root(self) -> str:
        return f"{self.prefix}/" if self.prefix else ""

    def _list(self, below: str, *, root: str | None = None, most: int = 1000) -> dict[str, int]:
        """List keys below the root, and the sizes of their objects."""
        start, found = self._root if root is None else root, dict[str, int]()
        further: dict[str, str] = {}
        while True:
            page = self._ask("list_objects_v2", Prefix=f"{start}{below}", MaxKeys=most, **further)
            found.update({each["Key"].removeprefix(start): each["Size"] for each in page.get("Contents", ())})
            if most == 1 or not page.get("IsTruncated"):
                return found
            further = {"ContinuationToken": page["NextContinuationToken"]}

    def _ask(self, operation: str, **arguments: object) -> Mapping[str, Any]:
        # Imported here, so that only users of S3 wait for it.
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer: Mapping[str, Any] = getattr(self.client, operation)(Bucket=self.bucket, **arguments)
        except (BotoCoreError, ClientError) as failed:
            if status_of(failed) == _REFUSED and not are_credentials_refused(failed):
                raise UsageError(
                    f"no permission to move tables of {self.uri}: allow s3:ListBucket, s3:GetObject, s3:PutObject and "
                    f"s3:DeleteObject there, and below {self.uri.rstrip('/')}.replaced-*"
                ) from None
            raise error_for(failed, S3Target(uri=self.uri, bucket=self.bucket)) from None
        return answer


def _in_order_of_deletion(keys: Iterable[str]) -> list[list[str]]:
    """Groups of keys, to delete one after the other; those of a group at once.

    The facts of versions go first, because readers believe them. A log without them, without its checkpoints and its
    first commits is refused by all readers; until then it gives the whole table.
    """
    groups: dict[int, list[str]] = {}
    for key in sorted(keys):
        name = key.rpartition("/")[2]
        if f"/{LOG_FOLDER}/" not in key:
            at = _LAST
        elif _FACTS.fullmatch(name):
            at = -4
        elif name == "_last_checkpoint":
            at = -3
        elif _CHECKPOINT.match(name):
            at = -2
        else:
            commit = _COMMIT.fullmatch(name)
            at = int(commit[1]) if commit else _LAST
        groups.setdefault(at, []).append(key)
    return [groups[at] for at in sorted(groups)]
