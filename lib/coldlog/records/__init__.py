"""Read archived records: as a DataFrame, with single fetches, or one whole partition.

source  `spark.read.format("coldlog")`      fetch  Kafka's Fetch of one partition, without Spark
"""
