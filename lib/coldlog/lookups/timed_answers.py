"""Answer every request by its deadline.

All work, also reading the tables, runs in a separate process, so that it can be stopped when a store hangs. An answer
that arrives before the request's deadline counts. The other requests get REQUEST_TIMED_OUT, and the process is killed.

The tables are read partition by partition, or for up to 256 partitions together. Finished answers are sent several
times a second, also while the files of a later partition hang. Partitions that are read together with a hanging one or
after it, in the same slice, have to wait, because they share its process.

A reader that is open in a service cannot start processes for its questions. `answer_in_threads` does the same in
threads. They cannot be stopped: what hangs is left behind.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from operator import itemgetter
from queue import Empty, SimpleQueue
from typing import Self

import numpy as np
import numpy.typing as npt

from coldlog.errors import RetriableError
from coldlog.lookups.deadlines import NoResult, Piece, end_with_parent, run_pieces
from coldlog.lookups.list_offsets import ListOffsets, PartitionWork
from coldlog.lookups.questions import Answers, Indices, Questions
from coldlog.lookups.search.batch_lookup import load_decoder
from coldlog.model.list_offsets import ErrorCode

_fork = multiprocessing.get_context("fork")
_SEND_EVERY_S, _GRACE_S = 0.2, 0.5


def answer_until(
    open_lookup: Callable[[], ListOffsets],
    questions: Questions,
    deadlines: npt.NDArray[np.float64],
    *,
    most_at_once: int,
) -> Answers:
    """Return the answers of all requests, each within its deadline in seconds of time.time().

    `open_lookup` is called in the new process. Raise here what it or the tables raise.
    """
    count = len(deadlines)
    answers = Answers.nothing(count, ErrorCode.REQUEST_TIMED_OUT)
    is_waiting = np.ones(count, dtype=np.bool_)
    ours, its = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_answer, args=(open_lookup, questions, deadlines, most_at_once, its, ours))
    process.start()
    its.close()
    try:
        # Wait a moment longer, so that the process can end by itself.
        while (received := _receive(ours, float(deadlines[is_waiting].max(initial=0.0)) + _GRACE_S)) is not None:
            where, found = received
            is_waiting[where] = False
            in_time = deadlines[where] > time.time()
            answers.put(where[in_time], found.take(in_time))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()
        ours.close()
    return answers


def answer_in_threads(
    lookup: ListOffsets, questions: Questions, deadlines: npt.NDArray[np.float64], *, most_at_once: int
) -> tuple[Answers, bool]:
    """Return the answers of all requests, as `answer_until` does, and whether the lookup can be used again: false if a
    thread still reads its tables.
    """
    answers = Answers.nothing(len(deadlines), ErrorCode.REQUEST_TIMED_OUT)
    is_waiting = np.ones(len(deadlines), dtype=np.bool_)
    threads = _Threads(lookup, deadlines, most_at_once)
    reading = _start(lambda: threads.read_tables(questions))
    while is_waiting.any() and (message := threads.receive(float(deadlines[is_waiting].max()))) is not None:
        where, found = message
        is_waiting[where] = False
        in_time = deadlines[where] > time.time()
        answers.put(where[in_time], found.take(in_time))
    threads.is_over = True
    # After its last answer it ends at once.
    reading.join(0.0 if is_waiting.any() else _GRACE_S)
    return answers, not reading.is_alive()


class _Threads:
    """A thread that reads the tables, and after it some that do the rest of the work, one piece at a time each."""

    def __init__(self, lookup: ListOffsets, deadlines: npt.NDArray[np.float64], most_at_once: int) -> None:
        self._lookup = lookup
        self._deadlines = deadlines
        self._most_at_once = most_at_once
        self._news: SimpleQueue[tuple[Indices, Answers] | BaseException] = SimpleQueue()
        self.is_over = False
        self._waiting: deque[tuple[PartitionWork, float]] = deque()

    def receive(self, deadline: float) -> tuple[Indices, Answers] | None:
        """Return the next answers; None if there are none in time. Raise what a thread has raised."""
        try:
            message = self._news.get(timeout=max(0.0, deadline - time.time()))
        except Empty:
            return None
        if isinstance(message, BaseException):
            raise message
        return message

    def read_tables(self, questions: Questions) -> None:
        """Answer what the tables decide, then start the threads for the rest."""
        try:
            work = self._lookup.answer_from_tables(questions, lambda where, found: self._news.put((where, found)))
        except BaseException as failed:  # noqa: BLE001 - raised by the thread that waits
            self._news.put(failed)
            return
        last = [float(self._deadlines[piece.where].max()) for piece in work]
        self._waiting.extend(sorted(zip(work, last, strict=True), key=itemgetter(1)))
        for _ in range(min(self._most_at_once, len(work))):
            _start(self._work)

    def _work(self) -> None:
        try:
            with suppress(IndexError):
                while not self.is_over:
                    piece, deadline = self._waiting.popleft()
                    self._news.put((piece.where, piece.run(deadline)))
        except BaseException as failed:  # noqa: BLE001 - raised by the thread that waits
            self._news.put(failed)
        finally:
            self._lookup.close_local()


def _start(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name="coldlog-lookup", daemon=True)
    thread.start()
    return thread


def _receive(connection: Connection, deadline: float) -> tuple[Indices, Answers] | None:
    """Return the next message; None if there is no more, or none in time."""
    if not connection.poll(max(0.0, deadline - time.time())):
        return None
    try:
        message = connection.recv()
    except (EOFError, OSError) as died:
        raise RetriableError("the process that answers lookups died; run again, maybe with fewer requests") from died
    if isinstance(message, BaseException):
        raise message
    return message  # type: ignore[no-any-return]  # what `_answer` sends


def _answer(
    open_lookup: Callable[[], ListOffsets],
    questions: Questions,
    deadlines: npt.NDArray[np.float64],
    most_at_once: int,
    connection: Connection,
    not_ours: Connection,
) -> None:
    # A process group of its own: it is killed together with the children that it makes.
    os.setpgid(0, 0)
    end_with_parent()
    not_ours.close()
    try:
        for message in _iter_answers(open_lookup, questions, deadlines, most_at_once, connection):
            connection.send(message)
        connection.send(None)
    except BaseException as failed:  # noqa: BLE001 - sent unchanged, and raised by the parent
        connection.send(failed)
    finally:
        connection.close()
        os._exit(0)


def _iter_answers(
    open_lookup: Callable[[], ListOffsets],
    questions: Questions,
    deadlines: npt.NDArray[np.float64],
    most_at_once: int,
    connection: Connection,
) -> Iterator[tuple[Indices, Answers]]:
    with _AnswerSender(connection, len(deadlines)) as sender:
        work = open_lookup().answer_from_tables(questions, sender.add)
    if any(partition.reads_archive for partition in work):
        load_decoder()
    last = [float(deadlines[partition.where].max()) for partition in work]
    pieces = [Piece(partial(partition.run, deadline), deadline) for partition, deadline in zip(work, last, strict=True)]
    for number, result in run_pieces(pieces, most_at_once):
        where = work[number].where
        if result is NoResult.DIED:
            yield where, Answers.nothing(len(where), ErrorCode.KAFKA_STORAGE_ERROR)
        elif not isinstance(result, NoResult):
            yield where, result


class _AnswerSender:
    """Collects answers and sends them from a separate thread, because reading any table may hang."""

    def __init__(self, connection: Connection, count: int) -> None:
        self._connection = connection
        self._answers = Answers.nothing(count)
        self._unsent: list[Indices] = []
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send_regularly, daemon=True)

    def add(self, where: Indices, found: Answers) -> None:
        """Add the answers of the requests at these places."""
        self._answers.put(where, found)
        with self._lock:
            self._unsent.append(where)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Join before another thread sends, and before processes are forked: a fork with a running thread is unsafe.
        self._is_over.set()
        self._thread.join()

    def _send_regularly(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(_SEND_EVERY_S)
            with self._lock:
                unsent, self._unsent = self._unsent, []
            where = np.concatenate([np.empty(0, dtype=np.intp), *unsent])
            if len(where):
                with suppress(OSError):  # the parent has ended, and this process is about to be killed
                    self._connection.send((where, self._answers.take(where)))
