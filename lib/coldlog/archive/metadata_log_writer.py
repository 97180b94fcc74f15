"""Append records to coldlog's own log of the metadata topic in a directory.

The files are as a broker writes them, so that `metadata_log` can read them: `<topic>-<partition>/<base offset, 20
digits>.log`, one batch after another. An append is synchronized to the disk before it returns. When a log file is full,
a new one is created.

A killed process may leave an incomplete batch at the end. Readers treat it as the log's end. The writer truncates it
before its first append to the partition, so that it never hides later batches. A failed append is truncated at once; if
this also fails, nothing more is appended.

    <directory>/coldlog-metadata-log        marks the directory as coldlog's; has the topic's number of partitions
    <directory>/<topic>-<partition>/        one for each partition, all created at the start, because the partition
                                            of an event depends on their number

Several processes of one machine may append. For one append, a process locks (`flock`) the file `coldlog-metadata-log`;
the system releases the lock when the process ends. If another process has appended, the writer finds the log's end
again.

    <directory>/coldlog-metadata-log.jobs       a lock that jobs hold while they run, exclusive if they must run alone
    <directory>/coldlog-metadata-log.schedule   names a schedule; shared lock of the jobs that use this schedule

Refused (`UsageError`): a directory with partitions of the topic that coldlog did not write (a broker's own log must not
be changed), a directory that may not be written. Waiting too long for the lock is a `RetriableError`.
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
_LONGEST_SCHEDULE_BYTES = 1 << 16
_LOCK_WAIT_S, _LOCK_TICK_S = 30.0, 0.002
_LIMITS = DecodeLimits(max_batch_bytes=1 << 27, max_decompressed_bytes=1 << 27)


@dataclass(slots=True)
class _OpenLog:
    """The last log file of a partition, open at its end; `is_broken`: truncating it after a failed append failed."""

    name: str
    base_offset: int
    descriptor: int
    end_position: int
    next_offset: int
    is_broken: bool = False


@dataclass(slots=True, kw_only=True)
class MetadataLogWriter:
    """The partitions of one directory, for all threads of a process; `lock_descriptor` is the marker file's."""

    directory: str
    topic: str
    partition_count: int
    lock_descriptor: int
    segment_bytes: int = _SEGMENT_BYTES
    lock_wait_s: float = _LOCK_WAIT_S
    _logs: dict[int, _OpenLog] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def append(self, partition: int, values: Sequence[bytes], timestamp_ms: int) -> int:
        """Append records with this timestamp as one batch, synchronize, and return the offset of the first record."""
        if not 0 <= partition < self.partition_count:
            raise UsageError(f"{self.topic} has no partition {partition}: it has {self.partition_count} partitions")
        with (
            self._lock,
            _system_errors(self.directory),
            _locked(self.lock_descriptor, self.directory, self.lock_wait_s),
        ):
            log = self._find_end(partition)
            batch = write_record_batch(values, base_offset=log.next_offset, timestamp_ms=timestamp_ms)
            if log.end_position and log.end_position + len(batch) > self.segment_bytes:
                log = self._open(partition, log.next_offset)
            _append(log, memoryview(batch))
            log.next_offset += len(values)
            return log.next_offset - len(values)

    def close(self) -> None:
        """Close the log files; every append is already on the disk."""
        for log in self._logs.values():
            os.close(log.descriptor)
        self._logs.clear()

    def _find_end(self, partition: int) -> _OpenLog:
        """The log at its current end, after the batches of other processes; an incomplete batch is truncated."""
        log = self._logs.get(partition) or self._open(partition, self._last_base_offset(partition))
        if log.is_broken:
            raise RetriableError(f"an append to {self._folder(partition)} failed and could not be undone; run again")
        self._move_to_end(log)
        while log.next_offset > log.base_offset and os.path.exists(self._path(partition, log.next_offset)):
            log = self._open(partition, log.next_offset)
            self._move_to_end(log)
        return log

    def _last_base_offset(self, partition: int) -> int:
        store = LocalStore(root=self.directory, uri=self.directory)
        listed = store.iter_objects(f"{self.topic}-{partition}")
        names = [info.name.rpartition("/")[2] for info in listed if info.name.endswith(".log")]
        return int(names[-1].removesuffix(".log")) if names else 0

    def _move_to_end(self, log: _OpenLog) -> None:
        size_bytes = os.fstat(log.descriptor).st_size
        if size_bytes == log.end_position:
            return
        if size_bytes < log.end_position:
            raise ArchiveError(
                Reason.LOG_SIZE_DIFFERS,
                "log is shorter than the part that was already appended",
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
            _truncate(log)

    def _open(self, partition: int, base_offset: int) -> _OpenLog:
        """The log file with this base offset, created if missing; its content is not read."""
        path, folder = self._path(partition, base_offset), self._folder(partition)
        is_new = not os.path.exists(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if is_new:
            sync_directory(folder)
        previous = self._logs.get(partition)
        if previous is not None:
            os.close(previous.descriptor)
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
    """The directory has coldlog's marker file, so its disk is mounted."""
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
    """Open the log in `directory`, created if missing; an existing log keeps its number of partitions."""
    with _system_errors(directory):
        make_directories(directory)
        _refuse_foreign(directory, topic)
    with _opened(directory, MARKER) as descriptor:
        with _system_errors(directory), _locked(descriptor, directory, lock_wait_s):
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


@contextmanager
def holding_jobs_lock(directory: str, *, is_shared: bool) -> Iterator[None]:
    """Hold the lock of a job that must run alone on this log, or, if shared, of a job that uses leases."""
    with _opened(directory, JOBS_LOCK) as descriptor:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as held:
            raise UsageError(
                f"another job already uses the metadata log in {directory}; run one job at a time, or run all of them "
                "with tier.scheduled=true"
            ) from held
        yield


@contextmanager
def holding_schedule_lock(directory: str, schedule: str) -> Iterator[None]:
    """Hold the lock of a job that uses this schedule; leases in another schedule would not exclude its work."""
    with _opened(directory, SCHEDULE_LOCK) as descriptor:
        with _system_errors(directory), suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # No other job runs.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, os.fsencode(schedule), 0)
        # A job that holds the exclusive lock only writes the name of its schedule, so the wait is short.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        running = os.fsdecode(os.pread(descriptor, _LONGEST_SCHEDULE_BYTES, 0))
        if running != schedule:
            raise UsageError(
                f"running jobs of the metadata log in {directory} use the schedule in {running}, this job uses the one "
                f"in {schedule}, so work would be done twice; use one warehouse.uri for all of them"
            )
        yield


@contextmanager
def _opened(directory: str, name: str) -> Iterator[int]:
    """Open a file of the directory, both created if missing, and close it at the end of the block."""
    with _system_errors(directory):
        make_directories(directory)
        descriptor = os.open(os.path.join(directory, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _locked(descriptor: int, directory: str, wait_s: float) -> Iterator[None]:
    """Hold the lock of the log for one append."""
    end_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as held:
            if time.monotonic() >= end_s:
                raise RetriableError(
                    f"another process has locked the metadata log in {directory} for {wait_s:.0f} s; run again"
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
            _truncate(log)
            log.is_broken = False
        raise
    log.end_position += len(batch)


def _truncate(log: _OpenLog) -> None:
    os.ftruncate(log.descriptor, log.end_position)
    os.fsync(log.descriptor)


def _refuse_foreign(directory: str, topic: str) -> None:
    found = [name for name in os.listdir(directory) if re.fullmatch(re.escape(topic) + r"-[0-9]+", name)]
    if found and not has_marker(directory):
        raise UsageError(
            f"{directory} contains {found[0]}, which coldlog did not write: a broker's own log must not be changed; "
            "set metadata.uri to an empty directory, or metadata.source=topic"
        )


def _read_count(descriptor: int, directory: str, topic: str) -> int | None:
    """The number of partitions; None if it was not written yet (it is written before the partitions are created)."""
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
def _system_errors(directory: str) -> Iterator[None]:
    """Raise coldlog's errors for failed system calls."""
    try:
        yield
    except PermissionError as refused:
        raise UsageError(f"the metadata log in {directory} cannot be written: {refused.strerror}") from refused
    except OSError as failure:
        raise RetriableError(
            f"writing the metadata log in {directory} failed: {failure.strerror}; try again"
        ) from failure
