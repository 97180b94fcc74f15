"""Answer questions about archived Kafka logs without a broker."""

__version__ = "0.1.0"
