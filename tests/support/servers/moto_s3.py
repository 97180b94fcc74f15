"""moto_s3: moto's S3 as a server of its own, on a free port of the loopback, which its log names.

`python -m moto.server` serves every service: for each request it lists their modules to find the one that is meant,
which takes a third of the time.
"""

from __future__ import annotations

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


class _Quiet(MotoRequestHandler):
    """It does not log each request."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


if __name__ == "__main__":
    run_simple("127.0.0.1", 0, create_backend_app("s3"), threaded=True, request_handler=_Quiet)
