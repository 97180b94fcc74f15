"""Hold what a pool knows of a fetch in progress."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from coldlog.errors import RetriableError
from coldlog.model.fetch import FetchAnswer, FetchRequest
from coldlog.records.fetch.slices import LogSlice

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(slots=True, eq=False, kw_only=True)
class PoolFetch:
    """A fetch in progress.

    Its turn comes by `turn_by_ms`, or it is throttled. `future` is None when it is answered. `log_slice` and
    `accepted_bytes` are set while the queue counts the fetch.
    """

    request: FetchRequest
    place: Place
    deadline_ms: int
    turn_by_ms: int
    future: Future[FetchAnswer] | None
    log_slice: LogSlice | None = None
    accepted_bytes: int = 0
    failures: int = 0
    failed: RetriableError | None = None
    is_running: bool = False

    @property
    def is_over(self) -> bool:
        return self.future is None
