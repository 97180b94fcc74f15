"""program_runner: how does a test or a benchmark run records_program with the jars of Spark's Kafka source?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from servers.kafka_jars import resolve_jars

JARS = Path(__file__).with_name("spark_kafka.xml")
PROGRAM = Path(__file__).with_name("records_program.py")


def run_program(cases: list[dict[str, Any]], directory: Path, timeout_s: int = 500) -> list[dict[str, Any]]:
    """What the program tells of each case; one that fails fails an assertion."""
    own = Path(__file__).parent.parent.parent / ".jars"
    jars = sorted([*own.glob("*.jar"), *resolve_jars(JARS, "spark-kafka").glob("*.jar")])
    settings = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.shuffle.partitions": "2",
        # As docs/how-to/read-records.md advises.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.extraJavaOptions": "-Darrow.enable_unsafe_memory_access=true "
        "-Darrow.enable_null_check_for_get=false",
        "warehouse.uri": directory,
    }
    asked = directory / "cases.json"
    asked.write_text(json.dumps({"settings": settings, "cases": cases}, default=str), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, PROGRAM, asked], capture_output=True, text=True, check=False, timeout=timeout_s
    )
    assert ran.returncode == 0, ran.stderr[-20_000:]
    told: list[dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return told
