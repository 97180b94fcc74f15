"""Test that jobs keep the classes of Spark's JVM, and that the next ones start with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

JOB = '''"""Print what the JVM has mapped."""
import sys
from pathlib import Path
import coldlog.launch.session
from coldlog.launch.entry_point import job_argument_parser, run_job
from coldlog.runtime.spark import spark_gateway
coldlog.launch.session.class_directory = lambda: Path({folder!r})
def call(job):
    assert job.spark.range(3).count() == 3
    print([line.split()[-1] for line in open(f"/proc/{{spark_gateway._STARTED[-1].pid}}/maps") if ".jsa" in line])
sys.exit(run_job(call, job_argument_parser(__file__, __doc__)))
'''


def test_a_job_that_ends_well_keeps_the_classes_and_the_next_one_maps_them(tmp_path: Path) -> None:
    folder, script = tmp_path / "classes", tmp_path / "job.py"
    folder.mkdir()
    script.write_text(JOB.format(folder=str(folder)))

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), "--set", f"warehouse.uri={tmp_path / 'warehouse'}"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)

    first = run()
    assert first.returncode == 0, first.stderr
    assert "kept for the next starts" in first.stderr
    (kept,) = folder.iterdir()
    assert str(kept) not in first.stdout
    assert first.stdout.count("\n") == 1
    second = run()
    assert second.returncode == 0, second.stderr
    assert str(kept) in second.stdout
    assert "kept" not in second.stderr
    # Java's own messages would be on standard output.
    assert second.stdout.count("\n") == 1
    assert list(folder.iterdir()) == [kept]
