"""Do the tier's own work: copy closed segments into the archive, expire old ones, take turns, keep quotas.

    rules    what may be copied or deleted, and when: pure, with a given clock
    copying  the job copy_segments              expiry   the job expire_segments
    here     what both jobs use: schedule, quotas, the event log, the settings

In: log directories, the event log. Out: objects in the archive, events. No Spark.
"""
