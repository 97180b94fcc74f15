"""Index an archive: the main job, in the order in which it runs.

    events  read what the metadata topic announced       scan     list the segments of the archive
    builds  read segments, write index tables            publish  decide which offsets each segment serves

In: an archive, the metadata topic. Out: tables that lookups read; nothing is visible before `publish` commits. Read
`pipeline.py` first: each function there is what one job calls; `steps.py` has what they do one after another.
`preflight.py` ends a run before Spark starts if nothing has changed.
"""
