"""Replay the records of several partitions in one order. Read `order.py` first, then `runs` or `task_replayer.py`."""
