"""timed_process: how many seconds does a command take, by the clock and of the processors?

    timed_process.py COMMAND [ARGUMENT...]

Prints both as JSON. The clock stops when the command ends. Its processes that live a little longer (Spark's JVM and the
Python workers) are waited for, so that their processor time counts, too.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    """Run the command without its output; return its exit code."""
    # Orphans become children of this process and not of init, which would reap them unseen.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
    started = time.perf_counter()
    exit_code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    seconds = time.perf_counter() - started
    _wait_for_orphans()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"wall_s": seconds, "processor_s": used.ru_utime + used.ru_stime}))
    return exit_code


def _wait_for_orphans() -> None:
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
