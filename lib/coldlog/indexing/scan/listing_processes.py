"""List many directories of a local archive in several processes.

Listing a file takes some 18 us of a processor, nearly all of it in Python, so threads would only wait for each other.
Each process lists every n-th directory and sends, one by one, what the caller makes of it. A process that dies is no
loss: the caller lists its directories itself. A process whose parent dies ends with the next directory that it sends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import TypeVar

from coldlog.errors import ColdlogError

Item = TypeVar("Item")
Result = TypeVar("Result")
_MOST_PROCESSES = 8


def map_in_processes(call: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield the result of the call for each item, in order; a `ColdlogError` of the call is raised here.

    The call, the items and the results must be picklable.
    """
    # A process that is forked from one with threads may wait for a lock for ever.
    context = multiprocessing.get_context("spawn")
    count = max(1, min(_MOST_PROCESSES, len(os.sched_getaffinity(0)), len(items)))
    processes, pipes = [], list[Connection]()
    try:
        for number in range(count):
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=_send_results, args=(call, items[number::count], sending), daemon=True)
            process.start()
            sending.close()
            processes.append(process)
            pipes.append(receiving)
        for number, item in enumerate(items):
            try:
                result = pipes[number % count].recv()
            except (EOFError, OSError):  # the process has died
                result = call(item)
            if isinstance(result, ColdlogError):
                raise result
            yield result
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.terminate()
            process.join()


def _send_results(call: Callable[[Item], Result], items: Sequence[Item], pipe: Connection) -> None:
    """Send the result for each item, or the error that ends the work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller ends this process
    try:
        for item in items:
            pipe.send(call(item))
    except ColdlogError as error:
        pipe.send(error)
    except BrokenPipeError:
        return  # nobody waits any more
