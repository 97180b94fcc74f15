"""brokers: what does a running cluster say? The one place that knows a Kafka client."""
