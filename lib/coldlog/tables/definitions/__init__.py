"""Define the tables of a warehouse: one module per table, with columns, keys, clustering and comments.

Read `definition.py` first. A new table is one module and one line in `catalog.py`. Tables with the index of logs are in
`index`, those of the tier's own work in `tier`.
"""
