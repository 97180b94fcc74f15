"""Read and write the tables: with Spark (`warehouse.py`), or without an engine (`files`,
`small_table.py`, `plain_commit.py`).

Also decide which job may write: with the lock of a folder or the leases of a bucket. Read `warehouse.py` first.
"""
