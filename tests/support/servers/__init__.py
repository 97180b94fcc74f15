"""Brokers, S3 servers and other programs that tests talk to."""
