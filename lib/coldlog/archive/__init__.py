"""Find and read the bytes of an archive.

`stores` reads and writes objects; `layouts` names the objects of a segment in a store. Read `open_archive.py` first.
"""
