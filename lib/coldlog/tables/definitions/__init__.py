"""Define the tables of a warehouse: one module per table, with columns, keys, clustering and comments.

Read `definition.py` first. A new table is one module, one line in `catalog.py`, and a suite in conf/expectations.
Tables with the index of logs are in `index`, those of the tier's own work in `tier`.
"""
