"""suite: what is measured, on how much data, and where do the figures go?

    run.py [NAME] [--quick] [--only NAME] [--gb N] [--segments N]

A table on the screen while it goes, and benchmarks/results/latest.json with the machine's facts beside the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.bulk_lookups import measure_bulk_lookups
from benchmarks.checks import measure_checks
from benchmarks.depths import measure_depths
from benchmarks.hourly import measure_hourly
from benchmarks.kernel import measure_kernel
from benchmarks.lookups import measure_lookups
from benchmarks.one_segment import measure_one_segment
from benchmarks.records import measure_records
from benchmarks.replay import measure_replay
from benchmarks.scale import measure_scale
from benchmarks.serve import measure_serve
from benchmarks.serve_from_bucket import measure_serve_from_bucket
from benchmarks.shared.job_figures import measure_dump_log, measure_job
from benchmarks.shared.measuring import Figure
from benchmarks.shared.sizes import Sizes, full_sizes, quick_sizes
from benchmarks.small_runs import measure_small_runs
from benchmarks.start import measure_start

RESULTS = Path(__file__).resolve().parent / "results"
_COLUMNS = "{:<10} {:<44} {:<12} {:>10} {:<8} {:<42} {:>8} {:<10}"


Benchmark = Callable[[Sizes], Iterator[Figure]]

BENCHMARKS: dict[str, Benchmark] = {
    "kernel": measure_kernel,
    "depths": measure_depths,
    "dumplog": measure_dump_log,
    "one-segment": measure_one_segment,
    "job": measure_job,
    "lookups": measure_lookups,
    "bulk": measure_bulk_lookups,
    "records": measure_records,
    "replay": measure_replay,
    "start": measure_start,
    "checks": measure_checks,
    "small-runs": measure_small_runs,
    "scale": measure_scale,
    "hourly": measure_hourly,
    "serve": measure_serve,
    "serve-bucket": measure_serve_from_bucket,
}


_BY_NAME = ("hourly",)
"""It takes most of an hour, so it runs only if it is named."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what was asked for, prints and writes the figures."""
    parser = argparse.ArgumentParser(prog="run.py", description="Measure coldlog, side by side with its peers.")
    parser.add_argument("--quick", action="store_true", help="little data, few turns: to see that everything runs")
    parser.add_argument("name", nargs="?", choices=sorted(BENCHMARKS), help="as --only")
    parser.add_argument("--only", choices=sorted(BENCHMARKS), help="one benchmark alone")
    parser.add_argument("--segments", type=int, help="how many segments the benchmark scale generates rows of")
    parser.add_argument("--gb", type=float, default=10.0, help="size of the large archives (default 10)")
    asked = parser.parse_args(arguments)
    sizes = quick_sizes() if asked.quick else full_sizes(asked.gb)
    if asked.segments is not None:
        sizes = replace(sizes, scale_segment_count=asked.segments)
    figures: list[Figure] = []
    print(_COLUMNS.format("", "what", "on", "figure", "", "beside", "ratio", "target"))
    for name, benchmark in BENCHMARKS.items():
        if (asked.only or asked.name) == name or ((asked.only or asked.name) is None and name not in _BY_NAME):
            for figure in benchmark(sizes):
                figures.append(figure)
                print(line_of(figure), flush=True)
    path = write_results(figures, is_quick=asked.quick)
    print(f"\n{machine()['cores']} cores, load at the end {os.getloadavg()[0]:.1f}; figures in {path}")
    return 0


def line_of(figure: Figure) -> str:
    """One line of the table."""
    ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}"
    met = {None: "", True: " met", False: " MISSED"}[figure.is_met]
    value = f"{figure.value:,.1f}" if figure.value < 100 else f"{figure.value:,.0f}"
    return _COLUMNS.format(
        figure.benchmark, figure.what, figure.on, value, figure.unit, figure.against, ratio, figure.target + met
    ).rstrip()


def machine() -> dict[str, object]:
    """What the figures depend on besides the code."""
    return {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg(), "python": platform.python_version()}


def write_results(figures: Sequence[Figure], *, is_quick: bool) -> Path:
    """The figures as JSON, by benchmark; one that was not run keeps its earlier ones, and quick runs have a file
    apart."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / ("quick.json" if is_quick else "latest.json")
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in {figure.benchmark for figure in figures}:
        results[name] = {
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine(),
            "figures": [asdict(figure) for figure in figures if figure.benchmark == name],
        }
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
