"""Hand tables between Spark and Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Make a frame that has every row of `table`.

    Spark ends at the first empty batch behind another one, and loses the rows that follow (4.2.0). So the table is
    handed over as one batch. Of a list that has no batch, pyspark cannot find the type.
    """
    return spark.createDataFrame(table.combine_chunks() if table.num_rows else table.schema.empty_table())


@contextmanager
def unmeasured_batches(spark: SparkSession) -> Iterator[None]:
    """Within the block, queries count the rows of batches for Python, and do not measure their bytes.

    For that, Spark looks at all lists of a batch again at each row (4.2.0): the plan of a partition of 50,000 segments
    took 21 s, and without it 8 s. Use it for small rows only.
    """
    name = "spark.sql.execution.arrow.maxBytesPerBatch"
    before = spark.conf.get(name, "64m")
    spark.conf.set(name, str(2**31 - 1))
    try:
        yield
    finally:
        spark.conf.set(name, str(before))
