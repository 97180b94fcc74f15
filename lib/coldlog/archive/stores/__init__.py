"""List, read and write the objects of an archive: on this machine, in S3, in memory.

In: a uri and the options of a store. Out: listings, bytes, and atomic writes. Read `object_store.py` first. Errors:
`RetriableError` if a store does not answer, `ArchiveError` if an object is missing or unreadable.
"""
