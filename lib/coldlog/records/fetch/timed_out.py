"""Build the answer of a fetch that timed out."""

from __future__ import annotations

from coldlog.errors import RetriableError
from coldlog.model.fetch import FetchErrorCode, FetchFailure, FetchRequest


def timed_out(request: FetchRequest, failures: int, failed: RetriableError | None) -> FetchFailure:
    """Return REQUEST_TIMED_OUT with the last error; None: no attempt failed, a read still runs or waits."""
    why = "no attempt has ended" if failed is None else f"{failures} attempts failed, the last one: {failed}"
    return FetchFailure(
        error=FetchErrorCode.REQUEST_TIMED_OUT,
        message=f"{request}: no answer within {request.timeout_ms} ms; {why}",
    )
