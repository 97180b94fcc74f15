"""metadata_log_writer: how are records appended to a metadata topic's log in a directory of our own?

As a broker would keep it, so that `metadata_log` reads it: `<topic>-<partition>/<base offset, 20 digits>.log`, a batch
after another. An append is synchronized to the disk before it returns. When a log file is full another one begins.

A process that is killed may leave a tail that is no whole batch. Readers take it for the log's end; here it is cut off
when the partition is first written to, before anything is put behind it, so that what follows is never hidden or read
with it. An append that fails is cut off at once; where not even that can be done, nothing more is appended.

    <directory>/coldlog-metadata-log        says that the directory is ours, and how many partitions the topic has
    <directory>/<topic>-<partition>/        one for each, made at the beginning, since events are spread by their number

Any number of processes of one machine append. Each takes a lock (`flock`) on the file of that name for one append,
which the system takes back when the process ends, and finds the log's end again where another one has appended since.

    <directory>/coldlog-metadata-log.jobs   a lock that jobs hold as long as they run, where they must run alone
    <directory>/coldlog-metadata-log.schedule   one that jobs share which keep to the schedule that it names

Refused (`UsageError`): a directory with partitions of the topic that are not ours (a broker's own log must not be
written to), one that may not be written. Who waits for the lock too long gets a `RetriableError`.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from coldlog.archive.layouts.log_windows import LogFile, iter_log_windows
from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.archive.stores.local_store import LocalStore
from coldlog.archive.stores.local_writer import make_directories, sync_directory, write_all
from coldlog.errors import ArchiveError, Reason, RetriableError, UsageError
from coldlog.formats.kafka.record_batch_writer import write_record_batch
from coldlog.formats.limits import DecodeLimits

MARKER = "coldlog-metadata-log"
JOBS_LOCK = f"{MARKER}.jobs"
SCHEDULE_LOCK = f"{MARKER}.schedule"
_COUNT = re.compile(rb"partitions=([1-9][0-9]{0,8})\n")
_SEGMENT_BYTES = 64 << 20
_WINDOW_BYTES = 4 << 20
_LONGEST_PLACE_BYTES = 1 << 16
_LOCK_WAIT_S, _LOCK_TICK_S = 30.0, 0.002
_LIMITS = DecodeLimits(max_batch_bytes=1 << 27, max_decompressed_bytes=1 << 27)


@dataclass(slots=True)
class _OpenLog:
    """The last log file of a partition, open at its end; `is_broken`: it could not be cut behind a failed append."""

    name: str
    base_offset: int
    descriptor: int
    end_position: int
    next_offset: int
    is_broken: bool = False


@dataclass(slots=True, kw_only=True)
class MetadataLogWriter:
    """The partitions of one directory; for all threads of a process. `lock_descriptor` is the marker's."""

    directory: str
    topic: str
    partition_count: int
    lock_descriptor: int
    segment_bytes: int = _SEGMENT_BYTES
    lock_wait_s: float = _LOCK_WAIT_S
    _logs: dict[int, _OpenLog] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def append(self, partition: int, values: Sequence[bytes], timestamp_ms: int) -> int:
        """Appends records of that time as one batch, and returns the offset of the first; they are on the disk then."""
        if not 0 <= partition < self.partition_count:
            raise UsageError(f"{self.topic} has no partition {partition}: it has {self.partition_count}")
        with self._lock, _told(self.directory), _locked(self.lock_descriptor, self.directory, self.lock_wait_s):
            log = self._find_end(partition)
            batch = write_record_batch(values, base_offset=log.next_offset, timestamp_ms=timestamp_ms)
            if log.end_position and log.end_position + len(batch) > self.segment_bytes:
                log = self._open(partition, log.next_offset)
            _append(log, memoryview(batch))
            log.next_offset += len(values)
            return log.next_offset - len(values)

    def close(self) -> None:
        """Nothing is left to be written."""
        for log in self._logs.values():
            os.close(log.descriptor)
        self._logs.clear()

    def _find_end(self, partition: int) -> _OpenLog:
        """The log's end now: what others appended is taken up, what is no whole batch is cut off."""
        log = self._logs.get(partition) or self._open(partition, self._last_base_offset(partition))
        if log.is_broken:
            raise RetriableError(f"an append to {self._folder(partition)} failed and could not be undone; run again")
        self._take_up(log)
        while log.next_offset > log.base_offset and os.path.exists(self._path(partition, log.next_offset)):
            log = self._open(partition, log.next_offset)
            self._take_up(log)
        return log

    def _last_base_offset(self, partition: int) -> int:
        store = LocalStore(root=self.directory, uri=self.directory)
        listed = store.iter_objects(f"{self.topic}-{partition}")
        names = [each.name.rpartition("/")[2] for each in listed if each.name.endswith(".log")]
        return int(names[-1].removesuffix(".log")) if names else 0

    def _take_up(self, log: _OpenLog) -> None:
        size_bytes = os.fstat(log.descriptor).st_size
        if size_bytes == log.end_position:
            return
        if size_bytes < log.end_position:
            raise ArchiveError(
                Reason.LOG_SIZE_DIFFERS,
                "log became shorter than what was appended to it",
                object_name=log.name,
                expected=f"{log.end_position} bytes",
                found=f"{size_bytes} bytes",
            )
        store = LocalStore(root=self.directory, uri=self.directory)
        file = LogFile(name=log.name, size_bytes=size_bytes, base_offset=log.next_offset, is_active=True)
        windows = iter_log_windows(
            store, file, from_position=log.end_position, limits=_LIMITS, window_bytes=_WINDOW_BYTES
        )
        end, next_offset = log.end_position, log.next_offset
        for window in windows:
            end = int(window.headers.position[-1]) + int(window.headers.size_bytes[-1])
            next_offset = int(window.headers.last_offset[-1]) + 1
        log.end_position, log.next_offset = end, next_offset
        if end < size_bytes:
            _cut(log)

    def _open(self, partition: int, base_offset: int) -> _OpenLog:
        """The log file that begins there, made if need be; its content is not looked at."""
        path, folder = self._path(partition, base_offset), self._folder(partition)
        is_new = not os.path.exists(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if is_new:
            sync_directory(folder)
        before = self._logs.get(partition)
        if before is not None:
            os.close(before.descriptor)
        name = f"{self.topic}-{partition}/{base_offset:020d}.log"
        log = self._logs[partition] = _OpenLog(
            name=name, base_offset=base_offset, descriptor=descriptor, end_position=0, next_offset=base_offset
        )
        return log

    def _folder(self, partition: int) -> str:
        return os.path.join(self.directory, f"{self.topic}-{partition}")

    def _path(self, partition: int, base_offset: int) -> str:
        return os.path.join(self._folder(partition), f"{base_offset:020d}.log")


def has_marker(directory: str) -> bool:
    """A log of ours was begun there, and its disk is mounted."""
    return os.path.exists(os.path.join(directory, MARKER))


@contextmanager
def writing_metadata_log(
    directory: str,
    *,
    partition_count: int,
    topic: str = METADATA_TOPIC,
    segment_bytes: int = _SEGMENT_BYTES,
    lock_wait_s: float = _LOCK_WAIT_S,
) -> Iterator[MetadataLogWriter]:
    """Has the log in `directory` open, made if need be; one that is there keeps the number of its partitions."""
    with _told(directory):
        make_directories(directory)
        _refuse_foreign(directory, topic)
        descriptor = os.open(os.path.join(directory, MARKER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with _told(directory), _locked(descriptor, directory, lock_wait_s):
            count = _read_count(descriptor, directory, topic) or _write_count(descriptor, directory, partition_count)
            for partition in range(count):
                make_directories(os.path.join(directory, f"{topic}-{partition}"))
        writer = MetadataLogWriter(
            directory=directory,
            topic=topic,
            partition_count=count,
            lock_descriptor=descriptor,
            segment_bytes=segment_bytes,
            lock_wait_s=lock_wait_s,
        )
        try:
            yield writer
        finally:
            writer.close()
    finally:
        os.close(descriptor)


@contextmanager
def holding_jobs_lock(directory: str, *, is_shared: bool) -> Iterator[None]:
    """While a job runs that must be the only one on this log, or, shared, one of those that leases keep apart."""
    with _told(directory):
        make_directories(directory)
        descriptor = os.open(os.path.join(directory, JOBS_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as held:
            raise UsageError(
                f"another job copies with the metadata log in {directory}; run one at a time, or all of them with "
                "tier.scheduled=true"
            ) from held
        yield
    finally:
        os.close(descriptor)


@contextmanager
def holding_schedule_lock(directory: str, schedule: str) -> Iterator[None]:
    """While a job runs whose leases are in that schedule: those of another one keep nobody away from what it does."""
    with _told(directory):
        make_directories(directory)
        descriptor = os.open(os.path.join(directory, SCHEDULE_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with _told(directory), suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Nobody runs.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, os.fsencode(schedule), 0)
        # Whoever writes does nothing else meanwhile.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        held = os.fsdecode(os.pread(descriptor, _LONGEST_PLACE_BYTES, 0))
        if held != schedule:
            raise UsageError(
                f"jobs that run now on the metadata log in {directory} keep to the schedule in {held}, this one to "
                f"that in {schedule}, and would do the same again; give all of them one warehouse.uri"
            )
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _locked(descriptor: int, directory: str, wait_s: float) -> Iterator[None]:
    """The lock of the log, for one append."""
    end_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as held:
            if time.monotonic() >= end_s:
                raise RetriableError(
                    f"another process has kept the metadata log in {directory} locked for {wait_s:.0f} s; run again"
                ) from held
        time.sleep(_LOCK_TICK_S)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _append(log: _OpenLog, batch: memoryview) -> None:
    try:
        os.lseek(log.descriptor, log.end_position, os.SEEK_SET)
        write_all(log.descriptor, batch)
        os.fdatasync(log.descriptor)
    except BaseException:
        log.is_broken = True
        with suppress(OSError):
            _cut(log)
            log.is_broken = False
        raise
    log.end_position += len(batch)


def _cut(log: _OpenLog) -> None:
    os.ftruncate(log.descriptor, log.end_position)
    os.fsync(log.descriptor)


def _refuse_foreign(directory: str, topic: str) -> None:
    found = [name for name in os.listdir(directory) if re.fullmatch(re.escape(topic) + r"-[0-9]+", name)]
    if found and not has_marker(directory):
        raise UsageError(
            f"{directory} holds {found[0]}, which coldlog did not write: events are not appended to a broker's own "
            "log; name an empty directory as metadata.uri, or metadata.source=topic"
        )


def _read_count(descriptor: int, directory: str, topic: str) -> int | None:
    """None where none was written: it is written before the partitions are made."""
    content = os.pread(descriptor, 64, 0)
    matched = _COUNT.fullmatch(content)
    if matched is None and os.path.exists(os.path.join(directory, f"{topic}-0")):
        raise UsageError(f"{directory}/{MARKER} does not say how many partitions {topic} has; correct metadata.uri")
    return None if matched is None else int(matched[1])


def _write_count(descriptor: int, directory: str, partition_count: int) -> int:
    content = b"partitions=%d\n" % partition_count
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)
    os.fsync(descriptor)
    sync_directory(directory)
    return partition_count


@contextmanager
def _told(directory: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as refused:
        raise UsageError(f"the metadata log in {directory} cannot be written: {refused.strerror}") from refused
    except OSError as failure:
        raise RetriableError(
            f"writing the metadata log in {directory} failed: {failure.strerror}; try again"
        ) from failure
