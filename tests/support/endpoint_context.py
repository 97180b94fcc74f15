"""Make the context in which an endpoint answers, for tests that call the answers in this process."""

from __future__ import annotations

import io
from typing import Any

from coldlog.runtime.console import Console
from coldlog.serve.archive_view import ArchiveView
from coldlog.serve.context import Context
from coldlog.serve.groups.coordinator import Coordinator
from coldlog.serve.read_quota import ReadQuota
from coldlog.serve.telemetry.metrics import Metrics
from coldlog.serve.threads import Threads
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.system_clock import SystemClock


def endpoint_context(view: ArchiveView, threads: Threads, **others: Any) -> Context:
    """Return a context without users and quota, whose pools are all `threads`. `others` replace its fields."""
    fields: dict[str, Any] = {
        "view": view,
        "host": "",
        "port": 0,
        "fetch_threads": threads,
        "lookup_threads": threads,
        "table_threads": threads,
        "send_threads": threads,
        "console": Console(progress=io.StringIO(), results=io.StringIO()),
        "timeout_ms": 1,
        "request_seconds": 3600,
        "groups": Coordinator(first_delay_s=0),
        "metrics": Metrics(),
        "quota": ReadQuota(QuotaConfig(), SystemClock()),
    }
    return Context(**fields | others)
