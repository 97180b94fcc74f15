"""Become a job: `coldlog run` is the job run_pipeline, with the same options, exit codes and MASTER."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn


def become(job: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the job; `UsageError` if there is no such job or it cannot start."""
    from coldlog.launch import submit
    from coldlog.runtime.installation import STARTED_BY_COMMAND, keep_compiled_kernels

    # As spark-submit.sh sets them: Spark needs the same hash of a text in every process.
    os.environ.setdefault("PYTHONHASHSEED", "0")
    os.environ[STARTED_BY_COMMAND] = "1"
    keep_compiled_kernels()
    submit.become(job, arguments)
