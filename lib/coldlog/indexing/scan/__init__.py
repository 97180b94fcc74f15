"""List the archive and compare it with the table `segments`.

Read `scan.py` first (what changed), then `listing.py` (what is listed, and which copies are complete).
"""
