"""Define the tables of a warehouse: one module per table, with columns, keys, clustering and comments.

Read `definition.py` first. A new table is one module here and one line in `catalog.py`.
"""
