"""Explain failures of Spark that are not bugs of coldlog: what happened, where, and what to do.

- The JVM was killed or ended by itself. If this process started the JVM, the system is asked whether it still runs. The
  many errors that py4j raises for a lost JVM are only a hint to wait for its end.
- The JVM's heap was full.
- A Python worker died during a task.
- S3 refused a table to Spark.
- A disk was full.
- Files of a table are damaged or missing. Spark and Delta report this only in the text of their errors.

An error that a task raised on purpose is reported as on the driver. Any other error keeps its traceback.
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
from coldlog.runtime.spark.spark_gateway import jvm_exit_code

_HEAP_FULL_EXIT_CODE = 52
"""Spark's SparkExitCode.OOM."""
_DYING_S = 5.0
_ENDING_S = 60.0
"""A JVM that ends because its heap is full may need long for its last steps."""
_IS_ENDING = ("SparkContext was shut down", 'SparkContext.dagScheduler()" is null')
"""Texts of errors from a JVM that is about to end; the second is a failure inside Spark that follows from it."""
_LOST_TASK = re.compile(r"Lost (task [^()]+?) \(TID \d+\) \(([^()]+)\)")
_RAISED_ON_PURPOSE = re.compile(r"^coldlog\.errors\.([A-Za-z]+): (.+)$", re.MULTILINE)
_REFUSED_BY_S3 = re.compile(r"AccessDeniedException: (s3a://[^\s:]+)")
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_WRITTEN_PLACE = re.compile(
    r"\[TASK_WRITE_FAILED\] Task failed while writing rows to (\S+?)\.\s"
    r"|(?:FileNotFound|FileSystem)Exception: (\S+?)(?: \(|: )(?:No space|Disk quota|File too)"
)
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
_RESTORE = (
    "restore it from a backup or an older version of the object, or run rebuild_tables, which makes the tables anew "
    "from the archive and keeps what the archive cannot give"
)
_AGAIN = "start the job again: it continues from what was published"


LOG_IS_DAMAGED = "the log of a table is damaged"


def explain_failure(error: BaseException) -> str | None:
    """Return the lines that explain the failure to the user; None if `error` is not one of those listed above."""
    chain = list(_chain(error))
    code = jvm_exit_code(wait_s=_DYING_S if any(map(_is_hint, chain)) else 0)
    text = None if code is not None else _text_of_spark(chain)
    is_ending = text is not None and any(each in text for each in _IS_ENDING)
    if text is None or is_ending:
        code = jvm_exit_code(wait_s=_ENDING_S if is_ending else _DYING_S)
    if code == _HEAP_FULL_EXIT_CODE or (text and "java.lang.OutOfMemoryError" in text):
        return _heap_was_full()
    if code is not None or text is None or is_ending or any(isinstance(each, Py4JNetworkError) for each in chain):
        return _jvm_has_ended(code)
    refused = _REFUSED_BY_S3.search(text)
    if refused is not None:
        return _s3_refuses(refused[1])
    no_space = _NO_SPACE.search(text)
    if no_space is not None:
        return _disk_is_full(no_space[0], text)
    return _worker_has_ended(text) if "Python worker exited unexpectedly" in text else _table_is_damaged(text)


def error_of_a_worker(error: BaseException) -> ColdlogError | None:
    """Return the error that a task raised on purpose in a Python worker; Spark passes on only its traceback's text.

    The result is a `UsageError` or `RetriableError` if the task raised one, else a `ColdlogError`; None for all others.
    """
    text = _text_of_spark(list(_chain(error)))
    raised = _RAISED_ON_PURPOSE.findall(text or "")
    if not raised:
        return None
    kind, message = raised[-1]
    kinds: dict[str, type[ColdlogError]] = {each.__name__: each for each in (UsageError, RetriableError)}
    return kinds.get(kind, ColdlogError)(message)


_LOGGERS_OF_PY4J = (None, "py4j.java_gateway", "py4j.clientserver")
"""py4j also logs by the root logger. A filter of a logger does not see what its children log."""


def quiet_gateway() -> None:
    """Suppress the traceback that py4j logs for a lost JVM or an interrupt before it raises; the error says enough.

    This holds until the process ends, because py4j also calls the JVM for the text of an error and for collected
    objects.
    """
    for name in _LOGGERS_OF_PY4J:
        logging.getLogger(name).addFilter(_is_not_raised_too)


def _is_not_raised_too(record: logging.LogRecord) -> bool:
    raised_too = Py4JNetworkError | KeyboardInterrupt | ConnectionError
    return not (record.exc_info and isinstance(record.exc_info[1], raised_too))


def quiet_accumulators(context: SparkContext) -> None:
    """Suppress the traceback that pyspark's accumulator thread prints when the JVM closes the connection."""
    server = context._accumulatorServer
    handle_error = server.handle_error

    def handle_other_errors(request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            handle_error(request, client_address)

    server.handle_error = handle_other_errors  # type: ignore[method-assign]  # socketserver's hook for this


def _text_of_spark(chain: list[BaseException]) -> str | None:
    """Return the texts of Spark's errors; None if the JVM is gone, because py4j asks the JVM for these texts."""
    try:
        return "\n".join(str(each) for each in chain if isinstance(each, Py4JJavaError | PySparkException))
    except (Py4JError, OSError):
        return None


def _heap_was_full() -> str:
    return (
        "the heap of spark's JVM was full\n"
        "give it more memory (SPARK_DRIVER_MEMORY=4g or --set spark.driver.memory=4g; on a cluster "
        "spark.executor.memory), or lower build.max_bytes_per_commit\n"
        f"{_AGAIN}"
    )


def _jvm_has_ended(code: int | None) -> str:
    how = "" if code is None else f" by {signal.Signals(-code).name}" if code < 0 else f" with code {code}"
    return (
        f"spark's JVM has ended{how} while the job ran\n"
        f"{_AGAIN}\n"
        "if nobody stopped it, the system killed it because memory was short: give the machine more memory, or the JVM "
        "less (SPARK_DRIVER_MEMORY)"
    )


def _s3_refuses(uri: str) -> str:
    return (
        f"S3 refuses {uri} (403)\n"
        "allow s3:ListBucket and s3:GetObject on that bucket, and for jobs that write s3:PutObject and "
        "s3:DeleteObject; check which credentials the environment or profile of driver and executors names"
    )


def _disk_is_full(why: str, text: str) -> str:
    place = _WRITTEN_PLACE.search(text)
    if place is None:
        return (
            f"spark could not write a file ({why}): free space for the warehouse and for spark's temporary files "
            f"(spark.local.dir), then {_AGAIN}"
        )
    return f"{_user_uri(place[1] or place[2])} cannot be written ({why}): free space there, then {_AGAIN}"


def _worker_has_ended(text: str) -> str:
    lost = _LOST_TASK.search(text)
    where = f" in {lost[1]} on {lost[2]}" if lost else ""
    return (
        f"a python worker of spark was killed or crashed{where}\n"
        "most often the system killed it because memory was short: give the machine more memory (on a cluster "
        "spark.executor.memoryOverhead), run fewer tasks at once (MASTER=local[1]), or lower index.window_bytes and "
        "index.max_decompressed_bytes\n"
        f"{_AGAIN}; if the worker ends again, spark.python.worker.faulthandler.enabled=true shows where"
    )


def _table_is_damaged(text: str) -> str | None:
    unreadable = _UNREADABLE_FILE.search(text)
    if unreadable is not None:
        path = _user_uri(unreadable["file"])
        owner = "the log of a table" if "/_delta_log/" in path else "a table"
        if unreadable["hint"] == "FILE_NOT_EXIST":
            return f"a file of {owner} is missing: {path}; {_RESTORE}"
        why = "".join(f" ({kind}: {_shortened(cause)})" for kind, cause in _CAUSE.findall(text)[-1:])
        return f"a file of {owner} cannot be read: {path}{why}; if it is damaged, {_RESTORE}"
    log = _DAMAGED_LOG.search(text)
    if log is not None:
        return f"{LOG_IS_DAMAGED}: {_shortened(_user_uri(log[1]))}; {_RESTORE}"
    place = _NO_TABLE.search(text)
    if place is not None:
        path = _user_uri(place[1] or place[2])
        return f"{path} is not a table, but a file or a folder without Delta's log; if it was a table, {_RESTORE}"
    return None


def _user_uri(uri: str) -> str:
    """Write a URI as a user does, not as Hadoop does."""
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
    """Whether a call to a JVM that is about to end, or the stream of its rows, can raise this error."""
    is_gateway = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    return is_gateway or isinstance(error, OSError | EOFError)
