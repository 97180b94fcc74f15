"""Test that Delta's private classes have the fields that coldlog fills: a failure names what a new version changed.

`delta_log` calls the constructors of the first three. `plain_commit` derives the facts of the fourth, whose other
fields Delta can do without.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

FIELDS = {
    "actions.AddFile": "path partitionValues size modificationTime dataChange stats tags deletionVector baseRowId "
    "defaultRowCommitVersion clusteringProvider backReference amtPassthrough",
    "actions.SetTransaction": "appId version lastUpdated",
    "DeltaOperations$Write": "mode partitionBy predicate userMetadata isDynamicPartitionOverwrite canOverwriteSchema "
    "canMergeSchema replaceOnCond replaceUsingCols",
    "VersionChecksum": "txnId tableSizeBytes numFiles numDeletedRecordsOpt numDeletionVectorsOpt numMetadata "
    "numProtocol inCommitTimestampOpt setTransactions domainMetadata metadata protocol fileSizeHistogram "
    "deletedRecordCountsHistogramOpt allFiles lastManifestCommit",
}


@pytest.mark.parametrize("name", FIELDS)
def test_class_of_delta_has_the_fields_that_are_filled(spark: SparkSession, name: str) -> None:
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    found = jvm.java.lang.Class.forName(f"org.apache.spark.sql.delta.{name}", False, loader)
    constructor = max(found.getDeclaredConstructors(), key=lambda each: each.getParameterCount())
    assert [each.getName() for each in constructor.getParameters()] == FIELDS[name].split()
