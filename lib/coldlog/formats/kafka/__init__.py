"""Kafka's file and message formats: batches, records, indexes, snapshots, checkpoints, events. Bytes in, values out."""
