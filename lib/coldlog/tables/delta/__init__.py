"""Read and write the tables: with Spark (`warehouse.py`), or without an engine (`files`,
`small_table.py`, `plain_commit.py`).

Read `warehouse.py` first. `coldlog.tables.leases` decides which job may write.
"""
