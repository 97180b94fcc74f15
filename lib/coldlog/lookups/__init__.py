"""Answer offset and timestamp questions from the published tables, in SQL (`sql/`) and in Python.

In: requests, the tables, at batch and sidecar depth also the archive. Out: offsets and Kafka's error codes. Read
`list_offsets.py` first (the rules of ListOffsets), then `search/archive_search.py` (the first record at or after a
time). `answers.py` only writes answers to files.
"""
