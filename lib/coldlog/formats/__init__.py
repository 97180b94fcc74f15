"""Read and write the formats of Kafka and of Aiven's plugin: bytes to values and back.

Pure functions: no I/O, no clock, no Spark. Read `kafka/record_batch.py` first.
"""
