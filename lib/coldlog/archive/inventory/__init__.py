"""Take the listing of an archive in a bucket from an S3 Inventory report.

In: the uri of the reports and the live layout of the archive. Out: a layout that lists some partition directories from
the newest report, and everything else, and every read, from the bucket. Read `reports.py` first (which report), then
`reported_layout.py` (what is taken from it).
"""
