"""Ask a running Kafka cluster, and write to its topics.

The only room that knows a Kafka client (kafka-python). In: the servers and client options of the settings. Out: topics,
offsets, records. Read `kafka_client.py` first.
"""
