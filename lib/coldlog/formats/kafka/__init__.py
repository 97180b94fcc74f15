"""Read and write Kafka's file and message formats: batches, records, indexes, snapshots, checkpoints, events."""
