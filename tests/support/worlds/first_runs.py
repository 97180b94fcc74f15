"""first_runs: a folder with a warehouse after a first run, which each test gets anew at the same path.

A witness names the paths of archive and warehouse, so a copy elsewhere would be another warehouse to the next run.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRun:
    """What is in `place`, and a copy of it at the moment of `keep`, with its times."""

    spark: SparkSession
    folder: Path

    @property
    def place(self) -> Path:
        return self.folder / "place"

    def keep(self) -> None:
        shutil.copytree(self.place, self.folder / "kept")

    def restore(self) -> Path:
        """Bring back what was kept, and make Delta forget what it knows of later versions of these tables."""
        shutil.rmtree(self.place)
        shutil.copytree(self.folder / "kept", self.place)
        jvm: Any = self.spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        return self.place
