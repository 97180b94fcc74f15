"""Delete expired segments from the archive. Read `expire_segments.py` first, then `expire_partition.py`."""
