"""spark_failures: which process of Spark ended under a job, and what can its user do?

Ends that are no fault of coldlog, each told in a few lines: what, where, what to do. The JVM is gone (killed, or ended
by itself), its heap was full, a Python worker was gone in the middle of a task, S3 refused a table to Spark, or a
table's files are damaged or gone, which Spark and Delta say in the text of their errors alone. Whether
the JVM is gone is asked of the system where this process started it; the many shapes in which py4j says so are only a
hint to wait for its end. What a task raised on purpose is told as it is on the driver. Any other error is left to its
traceback.
"""

from __future__ import annotations

import logging
import re
import signal
import socket
import sys
from collections.abc import Iterator
from urllib.parse import unquote

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.runtime.spark_gateway import jvm_exit_code

_HEAP_FULL_EXIT_CODE = 52
"""Spark's own: SparkExitCode.OOM."""
_DYING_S = 5.0
_IS_ENDING = ("SparkContext was shut down", 'SparkContext.dagScheduler()" is null')
"""Of a JVM that is about to end; the second is what Spark itself stumbles over then."""
_LOST_TASK = re.compile(r"Lost (task [^()]+?) \(TID \d+\) \(([^()]+)\)")
_RAISED_ON_PURPOSE = re.compile(r"^coldlog\.errors\.([A-Za-z]+): (.+)$", re.MULTILINE)
_REFUSED_BY_S3 = re.compile(r"AccessDeniedException: (s3a://[^\s:]+)")
_UNREADABLE_FILE = re.compile(
    r"\[FAILED_READ_FILE\.(?P<hint>\w+)\] Encountered error while reading file (?P<file>.+?\.(?:json|parquet))\.\s"
)
_DAMAGED_LOG = re.compile(
    r"\[DELTA_(?:VERSIONS_NOT_CONTIGUOUS|TRUNCATED_TRANSACTION_LOG|LOG_FILE_NOT_FOUND|MISSING_PART_FILES"
    r"|STATE_RECOVER_ERROR)\] ([^\n]+)"
)
_NO_TABLE = re.compile(
    r"\[DELTA_(?:CREATE_EXTERNAL_TABLE_WITHOUT_TXN_LOG\] .*? from `([^`\n]+)` using"
    r"|CANNOT_CREATE_LOG_PATH\] Cannot create (\S+)/_delta_log)"
)
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+): ([^\n]+)$", re.MULTILINE)
_SHOWN_CHARACTERS = 400
_BRING_BACK = (
    "bring it back from a backup or an older version of the object, or run the pipeline into a new warehouse "
    "(another warehouse.uri): the archive and the metadata topic have all but the history of runs, log start offsets "
    "that were supplied, and the progress of replays and of a tier"
)
_AGAIN = "the job may simply be started again: it goes on from what was published"


def explain_failure(error: BaseException) -> str | None:
    """The lines that tell the user of it; None where `error` is not the end of one of Spark's processes."""
    chain = list(_chain(error))
    code = jvm_exit_code(wait_s=_DYING_S if any(map(_is_hint, chain)) else 0)
    told = None if code is not None else _told_by_spark(chain)
    if told is None or any(each in told for each in _IS_ENDING):
        code = jvm_exit_code(wait_s=_DYING_S)
    if code == _HEAP_FULL_EXIT_CODE or (told and "java.lang.OutOfMemoryError" in told):
        return _heap_was_full()
    if code is not None or told is None or any(isinstance(each, Py4JNetworkError) for each in chain):
        return _jvm_has_ended(code)
    refused = _REFUSED_BY_S3.search(told)
    if refused is not None:
        return _s3_refuses(refused[1])
    return _worker_has_ended(told) if "Python worker exited unexpectedly" in told else _table_is_damaged(told)


def error_of_a_worker(error: BaseException) -> ColdlogError | None:
    """What a task raised on purpose in a Python worker, which Spark hands on as the text of a traceback.

    A `UsageError` or `RetriableError` where it was one, else a `ColdlogError`; None for all others.
    """
    told = _told_by_spark(list(_chain(error)))
    raised = _RAISED_ON_PURPOSE.findall(told or "")
    if not raised:
        return None
    kind, message = raised[-1]
    kinds: dict[str, type[ColdlogError]] = {each.__name__: each for each in (UsageError, RetriableError)}
    return kinds.get(kind, ColdlogError)(message)


def quiet_gateway() -> None:
    """py4j logs a lost JVM with a traceback before it raises; the error says enough.

    For the rest of the process: the JVM is also asked for the text of an error, and told of objects that are collected.
    """
    logging.getLogger().addFilter(_is_worth_telling)


def _is_worth_telling(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], Py4JNetworkError))


def quiet_accumulators(context: SparkContext) -> None:
    """pyspark's thread for accumulators prints a traceback when the JVM hangs up on it; the error says enough."""
    server = context._accumulatorServer
    tell = server.handle_error

    def tell_other_errors(request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            tell(request, client_address)

    server.handle_error = tell_other_errors  # type: ignore[method-assign]  # socketserver's hook for this


def _told_by_spark(chain: list[BaseException]) -> str | None:
    """What Spark says of the errors it raised; None when it is gone: py4j asks the JVM for the text of an error."""
    try:
        return "\n".join(str(each) for each in chain if isinstance(each, Py4JJavaError | PySparkException))
    except (Py4JError, OSError):
        return None


def _heap_was_full() -> str:
    return (
        "the heap of spark's JVM was full\n"
        "give it more (SPARK_DRIVER_MEMORY=4g or --set spark.driver.memory=4g; on a cluster spark.executor.memory), "
        "or lower build.max_bytes_per_commit\n"
        f"{_AGAIN}"
    )


def _jvm_has_ended(code: int | None) -> str:
    how = "" if code is None else f" by {signal.Signals(-code).name}" if code < 0 else f" with code {code}"
    return (
        f"spark's JVM has ended{how} while the job ran\n"
        f"{_AGAIN}\n"
        "if nobody ended it, the system did for want of memory: give the machine more, or the JVM less "
        "(SPARK_DRIVER_MEMORY)"
    )


def _s3_refuses(what: str) -> str:
    return (
        f"S3 refuses {what} (403)\n"
        "allow s3:ListBucket, s3:GetObject, and to who writes s3:PutObject and s3:DeleteObject, on that bucket; check "
        "whose credentials the environment or the profile of driver and executors names"
    )


def _worker_has_ended(told: str) -> str:
    lost = _LOST_TASK.search(told)
    where = f" in {lost[1]} on {lost[2]}" if lost else ""
    return (
        f"a python worker of spark was killed or crashed{where}\n"
        "most often the system killed it for want of memory: give the machine more (on a cluster "
        "spark.executor.memoryOverhead), run fewer tasks at once (MASTER=local[1]), or lower index.window_bytes and "
        "index.max_decompressed_bytes\n"
        f"{_AGAIN}; if the worker ends again, spark.python.worker.faulthandler.enabled=true shows where"
    )


def _table_is_damaged(told: str) -> str | None:
    unreadable = _UNREADABLE_FILE.search(told)
    if unreadable is not None:
        path = _as_named(unreadable["file"])
        whose = "the log of a table" if "/_delta_log/" in path else "a table"
        if unreadable["hint"] == "FILE_NOT_EXIST":
            return f"a file of {whose} is gone: {path}; {_BRING_BACK}"
        why = "".join(f" ({kind}: {_shortened(text)})" for kind, text in _CAUSE.findall(told)[-1:])
        return f"a file of {whose} cannot be read: {path}{why}; if it is damaged, {_BRING_BACK}"
    log = _DAMAGED_LOG.search(told)
    if log is not None:
        return f"the log of a table is damaged: {_shortened(_as_named(log[1]))}; {_BRING_BACK}"
    place = _NO_TABLE.search(told)
    if place is not None:
        what = _as_named(place[1] or place[2])
        return f"{what} is no table, but a file or a folder without Delta's log; if a table was there, {_BRING_BACK}"
    return None


def _as_named(uri: str) -> str:
    """As a user names it, not as Hadoop does."""
    return unquote(re.sub(r"^file:/+", "/", uri)).replace("s3a://", "s3://", 1)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_hint(error: BaseException) -> bool:
    """What a call to a JVM that is about to die, or the stream of its rows, may raise."""
    is_gateway = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    return is_gateway or isinstance(error, OSError | EOFError)
