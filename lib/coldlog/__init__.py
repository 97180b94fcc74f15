"""coldlog: ask questions of archived Kafka logs without asking a broker."""

__version__ = "0.1.0"
