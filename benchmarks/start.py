"""start: how long does each command take as a process, beside its floor?

The floor of a question is Python with the two packages that it cannot do without; that of help is Python alone. All
run in turns, over the indexed sample archive, which the first run indexes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.shared.generated_logs import CACHE
from benchmarks.shared.measuring import Figure, seconds_in_turns
from benchmarks.shared.sizes import Sizes

_ROOT = Path(__file__).resolve().parent.parent
_PYTHON, _PACKAGES = "python -c pass", "import pyarrow.parquet, deltalake"
_NUMBA = "the same and numba"
_MOST = 3.0
_COMMANDS = {
    "coldlog --help": (["--help"], _PYTHON),
    "coldlog lookup": (["lookup", "orders", "2023-11-15T10:00Z"], _PACKAGES),
    "coldlog offsets": (["offsets", "orders", "latest-tiered"], _PACKAGES),
    "coldlog partitions": (["partitions"], _PACKAGES),
    "coldlog segments": (["segments"], _PACKAGES),
    "coldlog cat": (["cat", "orders", "-o", "2592", "-c", "10"], _NUMBA),
}
"""The arguments of each command, and its floor."""
_FLOORS = {
    _PYTHON: ["-c", "pass"],
    _PACKAGES: ["-c", _PACKAGES],
    _NUMBA: ["-c", f"{_PACKAGES}, numba"],
}


def measure_start(sizes: Sizes) -> Iterator[Figure]:
    """Time every command and every floor in turns."""
    warehouse = indexed_sample()
    calls = {name: _call(arguments) for name, arguments in _FLOORS.items()}
    for name, (arguments, _) in _COMMANDS.items():
        options = [] if arguments == ["--help"] else ["--warehouse", str(warehouse)]
        calls[name] = _call(["-m", "coldlog", *arguments, *options])
    seconds = seconds_in_turns(calls, 4 * sizes.turns)
    for name, (_, floor) in _COMMANDS.items():
        ratio = seconds[name] / seconds[floor]
        is_question = floor == _PACKAGES
        yield Figure(
            benchmark="start",
            what=name,
            on="sample",
            value=seconds[name] * 1000,
            unit="ms",
            against=f"{floor}: {seconds[floor] * 1000:.0f} ms",
            ratio=ratio,
            target="<= 3" if is_question else "",
            is_met=ratio <= _MOST if is_question else None,
        )


def _call(arguments: list[str]) -> Callable[[], object]:
    command = [sys.executable, *arguments]
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=_ROOT)


def indexed_sample() -> Path:
    """The warehouse of the sample archive; a run brings it up to date."""
    warehouse = CACHE / "warehouses" / "sample"
    command = [str(_ROOT / "spark-submit.sh"), "run_pipeline", "--set", f"warehouse.uri={warehouse}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return warehouse
