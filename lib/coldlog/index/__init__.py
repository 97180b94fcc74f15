"""Compute what a lookup must know of a log: running maxima, stairs, served ranges.

In: batches and segments. Out: rows of the index tables, and the plan of a partition. Everything here is pure. Read
`segment_index.py` (one segment) and `partition_plan.py` (one partition) first.
"""
