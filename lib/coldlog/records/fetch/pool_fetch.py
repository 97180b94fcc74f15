"""Hold the options of a pool, and what it knows of a fetch in progress."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from coldlog.errors import RetriableError, UsageError
from coldlog.model.fetch import FetchAnswer, FetchRequest
from coldlog.records.fetch.backoff import Backoff
from coldlog.records.fetch.slices import LogSlice
from coldlog.tiering.rules.fetch_quota import Accepted, Throttled
from coldlog.tiering.rules.quota_config import QuotaConfig

Place = tuple[str, int]
"""Topic and partition."""


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
