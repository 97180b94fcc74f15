"""metadata_log: which records does a copy of the metadata topic hold?

A broker keeps `__remote_log_metadata` like any topic: a directory `__remote_log_metadata-<partition>` with a log
segment `<base offset, 20 digits>.log` and those after it. The directories may lie in a broker's data directory, between
those of other topics, or be a copy in a store. The last segment may be the broker's active one: a tail that is cut
inside a batch, or that is zeros the broker has not written over, is the end of what is there, no damage.

Refused: names that are not a directory of the topic are passed over; damage in a segment is an `ArchiveError` with
object and position, behind which nothing of that partition is read. A batch whose records cannot be read is left out as
a whole. In the last segment a batch whose length reaches behind the file is a cut tail, unless whole batches lie in it.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import pairwise

from coldlog.archive.layouts.log_windows import iter_whole_batches
from coldlog.archive.stores.object_store import ObjectInfo, ObjectStore
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.record_batch import MAGIC_POSITION, WindowHeaders, read_batch_headers
from coldlog.formats.kafka.records import Record, iter_records
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits

METADATA_TOPIC = "__remote_log_metadata"
_LOG_NAME = re.compile(r"(?P<base_offset>[0-9]{20})\.log")
_INT64_MAX = 2**63 - 1
_WINDOW_BYTES = 4 << 20
_TAIL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One log segment of a partition."""

    base_offset: int
    info: ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """How far a partition was read: to a byte of a log file, where the batch of `next_offset` or a later one begins."""

    base_offset: int = -1
    position: int = 0
    next_offset: int = 0
    is_from_beginning: bool = True
    """Reading began at offset 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPartition:
    """The log segments of one partition of the metadata topic, by base offset."""

    partition: int
    files: tuple[LogFile, ...]


def list_metadata_partitions(store: ObjectStore, topic: str = METADATA_TOPIC) -> list[MetadataPartition]:
    """The partitions of `topic` that lie below the store's root, by number."""
    name = re.compile(re.escape(topic) + r"-(?P<partition>0|[1-9][0-9]{0,8})")
    found = [(matched, directory) for directory in store.list_directories("") if (matched := name.fullmatch(directory))]
    partitions = [
        MetadataPartition(partition=int(matched["partition"]), files=_list_files(store, directory))
        for matched, directory in found
    ]
    return sorted(partitions, key=lambda each: each.partition)


def iter_metadata_records(
    store: ObjectStore, partition: MetadataPartition, from_offset: int, limits: DecodeLimits
) -> Iterator[Record]:
    """The records at or behind `from_offset`, in order; control records are left out."""
    reader = _LogReader(store=store, sections=SectionReader(limits=limits))
    for file, is_last in _files_from(partition, from_offset):
        for record in reader.iter_file(file, is_last=is_last):
            if record.offset >= from_offset and not record.is_control:
                yield record


def read_new_records(
    store: ObjectStore, topic: str, partition: int, since: LogPosition, limits: DecodeLimits
) -> tuple[list[Record], LogPosition]:
    """What was appended behind `since`, and how far the log was read now; nothing before it is read again.

    Of a log whose offsets have no gaps, and that another process may append to: a gap is an `ArchiveError`.
    """
    found, at, lacking = _read_files(store, topic, partition, since, limits)
    if lacking is not None:
        # Sizes and names are not listed in one moment: a file may have grown and been followed by another in between.
        more, at, lacking = _read_files(store, topic, partition, at, limits)
        found += more
    if lacking is not None:
        raise ArchiveError(
            Reason.OFFSETS_NOT_ASCENDING,
            "offsets lack between two files of the log",
            object_name=lacking.info.name,
            expected=f"offset {at.next_offset}",
            found=f"{lacking.base_offset}",
        )
    return [record for record in found if not record.is_control], at


def _read_files(
    store: ObjectStore, topic: str, partition: int, since: LogPosition, limits: DecodeLimits
) -> tuple[list[Record], LogPosition, LogFile | None]:
    """The third is the file before which offsets lack."""
    files = [each for each in _list_files(store, f"{topic}-{partition}") if each.base_offset >= since.base_offset]
    reader = _LogReader(store=store, sections=SectionReader(limits=limits), next_offset=since.next_offset)
    found: list[Record] = []
    at = since
    for file, follows in pairwise((*files, None)):
        if file is None:
            break
        if at.base_offset >= 0 and file.base_offset > at.next_offset:
            return found, at, file
        begin = since.position if file.base_offset == since.base_offset else 0
        found += reader.iter_file(file, is_last=follows is None, from_position=begin)
        at = LogPosition(
            base_offset=file.base_offset,
            position=reader.position,
            next_offset=reader.next_offset,
            is_from_beginning=at.is_from_beginning and (at.base_offset >= 0 or file.base_offset == 0),
        )
    return found, at, None


def _list_files(store: ObjectStore, directory: str) -> tuple[LogFile, ...]:
    files = []
    for info in store.iter_objects(directory):
        matched = _LOG_NAME.fullmatch(info.name.rpartition("/")[2])
        if matched and int(matched["base_offset"]) <= _INT64_MAX:
            files.append(LogFile(base_offset=int(matched["base_offset"]), info=info))
    return tuple(sorted(files, key=lambda file: file.base_offset))


def _files_from(partition: MetadataPartition, from_offset: int) -> Iterator[tuple[LogFile, bool]]:
    """Files that may hold `from_offset` or what is behind it, and whether each is the last."""
    for file, follows in pairwise((*partition.files, None)):
        if file is not None and (follows is None or follows.base_offset > from_offset):
            yield file, follows is None


@dataclass(slots=True, kw_only=True)
class _LogReader:
    """Reads one file after another; offsets must rise through all of them."""

    store: ObjectStore
    sections: SectionReader
    next_offset: int = 0
    position: int = 0
    """Of the file that is read: behind its last whole batch."""

    def iter_file(self, file: LogFile, *, is_last: bool, from_position: int = 0) -> Iterator[Record]:
        """Records of one file; before damage is raised, all that lie before it."""
        self.next_offset, self.position = max(self.next_offset, file.base_offset), from_position
        name, size_bytes = file.info.name, file.info.size_bytes
        if size_bytes < from_position:
            raise ArchiveError(
                Reason.LOG_SIZE_DIFFERS,
                "log became shorter than what was read of it",
                object_name=name,
                expected=f"{from_position} bytes",
                found=f"{size_bytes} bytes",
            )
        position, needed, is_end = from_position, 0, size_bytes == from_position
        while not is_end:
            wanted = min(max(_WINDOW_BYTES, needed), size_bytes - position)
            window = self.store.read_range(name, position, wanted)
            # A file may have become shorter since it was listed.
            is_end = len(window) < wanted or position + wanted == size_bytes
            try:
                read = yield from self._iter_window(window, position, must_end=is_end and not is_last)
            except ArchiveError as wrong:
                # Of a header across two blocks of the disk the second may never have been written.
                if is_last and self._is_zeros_from(file, wrong.position + MAGIC_POSITION):
                    return
                raise wrong.with_object_name(name) from wrong
            if is_end and is_last:
                self._require_cut_tail(window[read.consumed_bytes :], name, position + read.consumed_bytes)
            position += read.consumed_bytes
            self.position = position
            needed = read.needed_bytes

    def _require_cut_tail(self, tail: memoryview, name: str, position: int) -> None:
        """A tail that a copy cut holds no whole batch; behind a length that lies there are some."""
        for at in iter_whole_batches(tail[:_TAIL_BYTES]):
            raise ArchiveError(
                Reason.BATCH_LENGTH_INVALID,
                "batch is longer than the log, and whole batches lie inside it",
                object_name=name,
                position=position,
                expected=f"a batch that ends before byte {position + at}",
                found=f"{int.from_bytes(tail[8:12], 'big')} bytes",
            )

    def _iter_window(
        self, window: memoryview, position: int, *, must_end: bool
    ) -> Generator[Record, None, WindowHeaders]:
        try:
            read = read_batch_headers(
                window,
                position=position,
                next_offset=self.next_offset,
                is_last=must_end,
                max_batch_bytes=self.sections.limits.max_batch_bytes,
            )
        except ArchiveError as wrong:
            yield from self._iter_window(window[: wrong.position - position], position, must_end=True)
            raise
        for index in range(len(read.headers)):
            batch = read.headers.slice(index, index + 1)
            yield from list(iter_records(window, batch, position, self.sections))
            self.next_offset = int(batch.last_offset[0]) + 1
        return read

    def _is_zeros_from(self, file: LogFile, position: int) -> bool:
        while position < file.info.size_bytes:
            window = self.store.read_range(file.info.name, position, _WINDOW_BYTES)
            if any(window):
                return False
            position += max(1, len(window))
        return True
