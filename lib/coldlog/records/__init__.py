"""Read archived records: as a DataFrame, with single fetches, or one whole partition.

source  `spark.read.format("coldlog")`      fetch  Kafka's Fetch of one partition, without Spark

In: the tables, which say which bytes to read. Out: records; control batches and, for READ_COMMITTED, aborted records
are left out. Read `source/datasource.py` or `fetch/record_source.py` first.
"""
