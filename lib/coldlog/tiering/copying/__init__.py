"""Copy closed segments into the archive. Read `copy_segments.py` first, then `copy_partition.py`."""
