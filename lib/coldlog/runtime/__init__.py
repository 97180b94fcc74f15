"""Give a job its settings and its console, and turn failures of Spark into short messages.

No module here knows a table, and only `open_layout.py` knows an archive. Read `settings.py` first.
"""
