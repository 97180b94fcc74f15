"""timed_answers: how does every request get an answer by its deadline?

All of it happens in a process of its own, tables included, so that a store that hangs can be left: what came before a
request's deadline is its answer, the others are REQUEST_TIMED_OUT, and what still ran is killed.

Tables are read partition by partition, and what they told is handed over several times a second, also while a later
partition's files hang. Those behind it in the slice have to wait for it: they share its process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Self

import numpy as np
import numpy.typing as npt

from coldlog.errors import RetriableError
from coldlog.lookups.deadlines import NoResult, Piece, end_with_parent, run_pieces
from coldlog.lookups.list_offsets import ListOffsets
from coldlog.lookups.questions import Answers, Indices, Questions
from coldlog.model.list_offsets import ErrorCode

_fork = multiprocessing.get_context("fork")
_TELL_EVERY_S, _GRACE_S = 0.2, 0.5


def answer_until(
    open_lookup: Callable[[], ListOffsets],
    questions: Questions,
    deadlines: npt.NDArray[np.float64],
    *,
    most_at_once: int,
) -> Answers:
    """Answers of all requests, each within its deadline in seconds of time.time().

    `open_lookup` is called in the new process. What it or the tables raise is raised here.
    """
    count = len(deadlines)
    answers = Answers.nothing(count, ErrorCode.REQUEST_TIMED_OUT)
    is_waiting = np.ones(count, dtype=np.bool_)
    ours, its = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_answer, args=(open_lookup, questions, deadlines, most_at_once, its, ours))
    process.start()
    its.close()
    try:
        # A moment longer: whoever can still clear up behind itself does.
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


def _receive(connection: Connection, deadline: float) -> tuple[Indices, Answers] | None:
    """None where there is nothing more, or nothing in time."""
    if not connection.poll(max(0.0, deadline - time.time())):
        return None
    try:
        message = connection.recv()
    except (EOFError, OSError) as died:
        raise RetriableError("the process that answered lookups died; run again, with fewer requests perhaps") from died
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
    # A group of its own, which is killed together with the children that it makes.
    os.setpgid(0, 0)
    end_with_parent()
    not_ours.close()
    try:
        for message in _iter_answers(open_lookup, questions, deadlines, most_at_once, connection):
            connection.send(message)
        connection.send(None)
    except BaseException as failed:  # noqa: BLE001 - handed over whole, and raised by the parent
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
    with _TablesTeller(connection, len(deadlines)) as teller:
        work = open_lookup().answer_from_tables(questions, teller.tell)
    pieces = [Piece(each.run, float(deadlines[each.where].max())) for each in work]
    for number, result in run_pieces(pieces, most_at_once):
        where = work[number].where
        if result is NoResult.DIED:
            yield where, Answers.nothing(len(where), ErrorCode.KAFKA_STORAGE_ERROR)
        elif not isinstance(result, NoResult):
            yield where, result


class _TablesTeller:
    """Gathers answers and sends them on from a thread of its own: who reads tables may hang behind any of them."""

    def __init__(self, connection: Connection, count: int) -> None:
        self._connection = connection
        self._answers = Answers.nothing(count)
        self._untold: list[Indices] = []
        self._turn = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send_on, daemon=True)

    def tell(self, where: Indices, found: Answers) -> None:
        """Answers of the requests at these places."""
        self._answers.put(where, found)
        with self._turn:
            self._untold.append(where)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Joined before anything is sent by others, and before processes are made, which would inherit half a thread.
        self._is_over.set()
        self._thread.join()

    def _send_on(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(_TELL_EVERY_S)
            with self._turn:
                untold, self._untold = self._untold, []
            where = np.concatenate([np.empty(0, dtype=np.intp), *untold])
            if len(where):
                with suppress(OSError):  # the parent has gone, and this process is about to be killed
                    self._connection.send((where, self._answers.take(where)))
