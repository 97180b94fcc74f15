"""timed_answers: how does every request get an answer by its deadline?

All of it happens in a process of its own, tables included, so that a store that hangs can be left: what came before a
request's deadline is its answer, the others are REQUEST_TIMED_OUT, and what still ran is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from coldlog.errors import RetriableError
from coldlog.lookups.deadlines import NoResult, Piece, end_with_parent, run_pieces
from coldlog.lookups.list_offsets import ListOffsets
from coldlog.lookups.questions import Answers, Indices, Questions
from coldlog.model.list_offsets import ErrorCode

_fork = multiprocessing.get_context("fork")


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
    ours, its = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_answer, args=(open_lookup, questions, deadlines, most_at_once, its, ours))
    process.start()
    its.close()
    try:
        for where, found in _iter_received(ours, float(deadlines.max(initial=0.0))):
            in_time = deadlines[where] > time.time()
            answers.put(where[in_time], found.take(in_time))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()
        ours.close()
    return answers


def _iter_received(connection: Connection, last_deadline: float) -> Iterator[tuple[Indices, Answers]]:
    while connection.poll(max(0.0, last_deadline - time.time())):
        try:
            message = connection.recv()
        except (EOFError, OSError) as died:
            raise RetriableError(
                "the process that answered lookups died; run again, with fewer requests perhaps"
            ) from died
        if isinstance(message, BaseException):
            raise message
        if message is None:
            return
        yield message


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
        for message in _iter_answers(open_lookup, questions, deadlines, most_at_once):
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
) -> Iterator[tuple[Indices, Answers]]:
    answers, is_done, work = open_lookup().answer_from_tables(questions)
    done = np.flatnonzero(is_done)
    yield done, answers.take(done)
    pieces = [Piece(each.run, float(deadlines[each.where].max())) for each in work]
    for number, result in run_pieces(pieces, most_at_once):
        where = work[number].where
        if result is NoResult.DIED:
            yield where, Answers.nothing(len(where), ErrorCode.KAFKA_STORAGE_ERROR)
        elif not isinstance(result, NoResult):
            yield where, result
