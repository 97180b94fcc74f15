"""Read archived records: as a DataFrame, by single fetches, and one partition from end to end.

source  `spark.read.format("coldlog")`      fetch  Kafka's Fetch of one partition, without Spark
"""
