"""timed_out: what is a fetch told whose time is over?"""

from __future__ import annotations

from coldlog.errors import RetriableError
from coldlog.model.fetch import FetchErrorCode, FetchFailure, FetchRequest


def timed_out(request: FetchRequest, failures: int, failed: RetriableError | None) -> FetchFailure:
    """REQUEST_TIMED_OUT, with what went wrong last; None: nothing did, a read is still under way or waits."""
    why = "no attempt has ended" if failed is None else f"{failures} attempts failed, the last one: {failed}"
    return FetchFailure(
        error=FetchErrorCode.REQUEST_TIMED_OUT,
        message=f"{request}: no answer within {request.timeout_ms} ms; {why}",
    )
