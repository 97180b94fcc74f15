"""Read and write the tables: with Spark (`warehouse.py`), without an engine (`table_reader.py`), in one commit.

Also who may write now: the lock of a folder, the leases of a bucket. Read `warehouse.py` first.
"""
