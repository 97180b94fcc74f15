"""Kafka's Fetch of one partition, without Spark. Read `record_source.py` first; `coldlog.fetcher` is its front."""
