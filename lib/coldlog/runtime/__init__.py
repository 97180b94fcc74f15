"""What a job is given and how it speaks: settings, console, times, and errors of Spark in a line.

Nothing here knows a table, and only `open_layout.py` an archive. Read `settings.py` first.
"""
