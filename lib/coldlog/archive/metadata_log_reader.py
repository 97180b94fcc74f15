"""Read the records of a copy of the metadata topic.

The last segment may be the broker's active one: a tail that is cut inside a batch, or zeros that the broker has not
overwritten yet, are the end of the log, not damage. Damage in a segment is an `ArchiveError` with object and position;
nothing of the partition is read after it. A batch whose records cannot be read is omitted as a whole. If a batch in the
last segment is longer than the file, it is a cut tail, unless it contains whole batches.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from coldlog.archive.layouts.log_windows import iter_whole_batches
from coldlog.archive.metadata_log import LogFile, MetadataPartition, list_log_files
from coldlog.archive.stores.object_store import ObjectStore
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.record_batch import MAGIC_POSITION, WindowHeaders, read_batch_headers
from coldlog.formats.kafka.records import Record, iter_records
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits

_WINDOW_BYTES = 4 << 20
_TAIL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """How far a partition was read: the position in a log file at which the batch of `next_offset` or a later one
    begins."""

    base_offset: int = -1
    position: int = 0
    next_offset: int = 0
    is_from_beginning: bool = True
    """Reading began at offset 0."""


def iter_metadata_records(
    store: ObjectStore, partition: MetadataPartition, from_offset: int, limits: DecodeLimits
) -> Iterator[Record]:
    """The records at or after `from_offset`, in order, without control records.

    Of batches before it only the headers are read.
    """
    reader = _LogReader(store=store, sections=SectionReader(limits=limits), from_offset=from_offset)
    for file, is_last in _files_from(partition, from_offset):
        for record in reader.iter_file(file, is_last=is_last):
            if record.offset >= from_offset and not record.is_control:
                yield record


def read_new_records(
    store: ObjectStore, topic: str, partition: int, since: LogPosition, limits: DecodeLimits
) -> tuple[list[Record], LogPosition]:
    """The records that were appended after `since`, and the new position; nothing before `since` is read again.

    The log must have no gaps in its offsets (a gap is an `ArchiveError`); another process may append to it meanwhile.
    """
    found, reached, file_after_gap = _read_files(store, topic, partition, since, limits)
    if file_after_gap is not None:
        # Sizes and names are not listed at the same moment: meanwhile a file may have grown and a next one been
        # created.
        more, reached, file_after_gap = _read_files(store, topic, partition, reached, limits)
        found += more
    if file_after_gap is not None:
        raise ArchiveError(
            Reason.OFFSETS_NOT_ASCENDING,
            "offsets are missing between two files of the log",
            object_name=file_after_gap.info.name,
            expected=f"offset {reached.next_offset}",
            found=f"{file_after_gap.base_offset}",
        )
    return [record for record in found if not record.is_control], reached


def _read_files(
    store: ObjectStore, topic: str, partition: int, since: LogPosition, limits: DecodeLimits
) -> tuple[list[Record], LogPosition, LogFile | None]:
    """Records and position, as `read_new_records`; third, the file before which offsets are missing."""
    files = [file for file in list_log_files(store, f"{topic}-{partition}") if file.base_offset >= since.base_offset]
    reader = _LogReader(store=store, sections=SectionReader(limits=limits), next_offset=since.next_offset)
    found: list[Record] = []
    reached = since
    for file, next_file in pairwise((*files, None)):
        if file is None:
            break
        if reached.base_offset >= 0 and file.base_offset > reached.next_offset:
            return found, reached, file
        begin = since.position if file.base_offset == since.base_offset else 0
        found += reader.iter_file(file, is_last=next_file is None, from_position=begin)
        reached = LogPosition(
            base_offset=file.base_offset,
            position=reader.position,
            next_offset=reader.next_offset,
            is_from_beginning=reached.is_from_beginning and (reached.base_offset >= 0 or file.base_offset == 0),
        )
    return found, reached, None


def _files_from(partition: MetadataPartition, from_offset: int) -> Iterator[tuple[LogFile, bool]]:
    """The files that may have records at or after `from_offset`, each with whether it is the last."""
    for file, next_file in pairwise((*partition.files, None)):
        if file is not None and (next_file is None or next_file.base_offset > from_offset):
            yield file, next_file is None


@dataclass(slots=True, kw_only=True)
class _LogReader:
    """Read one file after another; offsets must ascend over all of them."""

    store: ObjectStore
    sections: SectionReader
    from_offset: int = 0
    """Records of batches that end before it are left out."""
    next_offset: int = 0
    position: int = 0
    """In the current file: the position after the last whole batch."""

    def iter_file(self, file: LogFile, *, is_last: bool, from_position: int = 0) -> Iterator[Record]:
        """Records of one file; an error for damage is raised after the records before it."""
        self.next_offset, self.position = max(self.next_offset, file.base_offset), from_position
        name, size_bytes = file.info.name, file.info.size_bytes
        if size_bytes < from_position:
            raise ArchiveError(
                Reason.LOG_SIZE_DIFFERS,
                "log is shorter than the part that was already read",
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
            except ArchiveError as damage:
                # If a header crosses two disk blocks, the second block may not be written yet.
                if is_last and self._is_zeros_from(file, damage.position + MAGIC_POSITION):
                    return
                raise damage.with_object_name(name) from damage
            if is_end and is_last:
                self._require_cut_tail(window[read.consumed_bytes :], name, position + read.consumed_bytes)
            position += read.consumed_bytes
            self.position = position
            needed = read.needed_bytes

    def _require_cut_tail(self, tail: memoryview, name: str, position: int) -> None:
        """Raise an error if whole batches follow: a cut tail contains none, but after a wrong length there are some."""
        for start in iter_whole_batches(tail[:_TAIL_BYTES]):
            raise ArchiveError(
                Reason.BATCH_LENGTH_INVALID,
                "batch is longer than the log and contains whole batches",
                object_name=name,
                position=position,
                expected=f"a batch that ends before byte {position + start}",
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
        except ArchiveError as damage:
            yield from self._iter_window(window[: damage.position - position], position, must_end=True)
            raise
        known = int(np.searchsorted(read.headers.last_offset, self.from_offset))
        if known:
            self.next_offset = int(read.headers.last_offset[known - 1]) + 1
        for index in range(known, len(read.headers)):
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
