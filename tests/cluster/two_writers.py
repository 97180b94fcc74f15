"""two_writers: appends to a table and merges into it, as one of several drivers that know nothing of each other.

    python two_writers.py TABLE NAME ROUNDS

In each round a row is appended, and its counter is merged up by one. A merge that met another writer's is made again;
how often is printed at the end. The table is made by the first append.
"""

from __future__ import annotations

import sys

# Makes pyspark tell Delta's conflicts as exceptions of its own.
import delta.exceptions  # noqa: F401
from pyspark.errors import PySparkException

from coldlog.launch.session import spark_session
from coldlog.runtime.settings_sources import load_settings


def main(table: str, name: str, rounds: int) -> None:
    # Of a hundred small statements most of the time goes into planning again and compiling: tests/support/planning.py.
    planning = ("adaptive.enabled=false", "codegen.wholeStage=false", "codegen.factoryMode=NO_CODEGEN")
    options = ("driver.memory=1g", "sql.shuffle.partitions=1", *(f"sql.{each}" for each in planning))
    settings = load_settings("local", [f"warehouse.uri={table}", *(f"spark.{each}" for each in options)])
    spark = spark_session(settings, app_name=name)
    location = table.replace("s3://", "s3a://")
    met = 0
    for number in range(rounds):
        row = spark.range(1).selectExpr(f"'{name}' AS writer", f"{number} AS number", "0 AS counter")
        row.write.format("delta").mode("append").save(location)
        while True:
            try:
                spark.sql(
                    f"MERGE INTO delta.`{location}` t USING (SELECT '{name}' AS writer, {number} AS number) s "
                    "ON t.writer = s.writer AND t.number = s.number WHEN MATCHED THEN UPDATE SET counter = counter + 1"
                )
                break
            except PySparkException as failed:
                if "DELTA_CONCURRENT" not in str(failed):
                    raise
                met += 1
    print(f"{met} met another writer's")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
