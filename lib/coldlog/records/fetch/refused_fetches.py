"""Build the answers of fetches that were not carried out: timed out, throttled, no room, pool closed."""

from __future__ import annotations

from coldlog.errors import RetriableError
from coldlog.model.fetch import FetchErrorCode, FetchFailure, FetchRequest
from coldlog.tiering.rules.fetch_quota import Throttled


def timed_out(request: FetchRequest, failures: int, failed: RetriableError | None) -> FetchFailure:
    """Return REQUEST_TIMED_OUT with the last error; None: no attempt failed, a read still runs or waits."""
    why = "no attempt has ended" if failed is None else f"{failures} attempts failed, the last one: {failed}"
    return FetchFailure(
        error=FetchErrorCode.REQUEST_TIMED_OUT,
        message=f"{request}: no answer within {request.timeout_ms} ms; {why}",
    )


def throttled(request: FetchRequest, refused: Throttled, left_ms: int) -> FetchFailure:
    """Answer a fetch whose turn would come later than its timeout."""
    return FetchFailure(
        error=FetchErrorCode.THROTTLING_QUOTA_EXCEEDED,
        message=f"{request}: the read quota (remote.log.manager.fetch.max.bytes.per.second) is used up for "
        f"{refused.throttle_ms} ms, longer than the remaining {left_ms} ms; fetch again after that",
        throttle_ms=refused.throttle_ms,
    )


def full(max_pending: int, threads: int) -> FetchFailure:
    """Answer a fetch for which a pool has no room."""
    return FetchFailure(
        error=FetchErrorCode.UNKNOWN_SERVER_ERROR,
        message=f"{max_pending} fetches are waiting (remote.log.reader.max.pending.tasks), and "
        f"{threads} workers are reading (remote.log.reader.threads); try again later",
    )


def closed() -> FetchFailure:
    """Answer a fetch of a pool that is closed."""
    return FetchFailure(error=FetchErrorCode.UNKNOWN_SERVER_ERROR, message="the pool is closed")
