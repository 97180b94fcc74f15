"""Name the objects of a segment, and read its files, in each layout of an archive.

In: a store. Out: partition directories, `ListedSegment`s, the bytes of a log or a small file. Read `layout.py` first.
A new layout is one module here and one line in `model/layout_names.py`.
"""
