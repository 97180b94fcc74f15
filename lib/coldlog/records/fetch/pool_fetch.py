"""Hold the options of a pool, what it knows of a fetch in progress, and the answers that it still has to deliver."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from coldlog.errors import RetriableError, UsageError
from coldlog.model.fetch import FetchAnswer, FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest
from coldlog.records.fetch.backoff import Backoff
from coldlog.records.fetch.slices import LogSlice
from coldlog.tiering.rules.fetch_quota import Accepted, Throttled
from coldlog.tiering.rules.quota_config import QuotaConfig

Place = tuple[str, int]
"""Topic and partition."""

Outcome = LogSlice | FetchAnswer | BaseException
"""The result of a piece of work: what to read, the answer, or an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """The options of a pool. The defaults are Kafka's."""

    quota: QuotaConfig = field(default_factory=QuotaConfig)
    threads: int = 10
    max_pending: int = 100
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if self.threads < 1 or self.max_pending < 1:
            raise UsageError(f"a pool needs at least 1 thread and 1 pending fetch: {self.threads}, {self.max_pending}")


@dataclass(slots=True, eq=False, kw_only=True)
class PoolFetch:
    """A fetch in progress.

    Its turn comes by `turn_by_ms`, or it is throttled. `future` is None when it is answered. `log_slice` and
    `accepted_bytes` are set while the queue counts the fetch. `reserved`: what the quota that processes share answered.
    """

    request: FetchRequest
    place: Place
    deadline_ms: int
    turn_by_ms: int
    future: Future[FetchAnswer] | None
    log_slice: LogSlice | None = None
    accepted_bytes: int = 0
    reserved: Accepted | Throttled | None = None
    failures: int = 0
    failed: RetriableError | None = None
    is_running: bool = False

    @property
    def is_over(self) -> bool:
        return self.future is None


class PoolAnswers:
    """Answers whose callers do not have them yet: a caller may do anything with it, so no lock is held then."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[FetchAnswer], FetchAnswer | BaseException]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, future: Future[FetchAnswer], answer: FetchAnswer | BaseException) -> None:
        """Keep an answer."""
        self._waiting.append((future, answer))

    def deliver(self) -> None:
        """Give all answers to their callers."""
        while True:
            try:
                future, answer = self._waiting.popleft()
            except IndexError:
                return
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def read_bytes(log_slice: LogSlice | None, outcome: Outcome) -> int:
    """Return how many bytes of the archive were read; a damaged batch was read too."""
    if isinstance(outcome, FetchedRecords):
        return outcome.read_bytes
    is_damaged = isinstance(outcome, FetchFailure) and outcome.error is FetchErrorCode.CORRUPT_MESSAGE
    return log_slice.size_bytes if is_damaged and log_slice is not None else 0
