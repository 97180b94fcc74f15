"""follow: let an endpoint read its settings again."""

from __future__ import annotations

import signal
import time

from endpoint.conftest import Endpoint


def follow(endpoint: Endpoint) -> str:
    """Send it SIGHUP, and return what it says of its settings."""
    said = len(endpoint.said())
    endpoint.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 60
    while "settings" not in endpoint.said()[said:]:
        assert time.monotonic() < deadline, "it does not follow"
        time.sleep(0.02)
    return endpoint.said()[said:]
