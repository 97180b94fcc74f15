"""Serve the archive to Kafka clients.

Clients give this address as bootstrap.servers and read the archived topics as from a broker: records of both isolation
levels, offsets by time, metadata. Clients cannot write records. Runs without Spark and Java, until SIGTERM or SIGINT;
see docs/how-to/serve-kafka-clients.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import NoReturn

from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.runtime.job import PlainJob
from coldlog.serve.process_end import leave


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the endpoint with these arguments, and end the process with the exit code."""
    # Arrow's own allocator kept 120 MB for the next tables, with none of them in use.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    leave(run_plain_job(_serve, make_parser(), argv))


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the arguments."""
    parser = job_argument_parser("serve", __doc__)
    parser.prog = "coldlog serve"
    add_serve_options(parser)
    return parser


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of serve."""
    group = parser.add_argument_group("serve")
    group.add_argument("--listen", metavar="HOST:PORT", help="address to listen on (default: serve.listen)")
    group.add_argument(
        "--advertise", metavar="HOST:PORT", help="address that clients are told (default: that of --listen)"
    )
    group.add_argument("--metrics", metavar="HOST:PORT", help="address that Prometheus asks (default: serve.metrics)")
    group.add_argument(
        "--hash-password", metavar="USER", help="read a password, print the user's part of serve.users, and end"
    )


def _serve(job: PlainJob) -> int:
    # Imported here, so that help needs no package of an extra.
    from coldlog.serve.program import serve

    return serve(job)
