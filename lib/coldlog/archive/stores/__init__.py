"""Read, list and write the objects of an archive: on this machine, in S3, in memory.

In: a uri and the options of a store. Out: bytes, listings, writes that are whole or absent. Read `object_store.py`
first. Errors: `RetriableError` where a store does not answer, `ArchiveError` for an answer that cannot be right.
"""
