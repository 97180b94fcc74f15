"""Make frames of Arrow tables."""

from __future__ import annotations

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
