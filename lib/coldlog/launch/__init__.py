"""Turn a command into a running job: find it, start Spark with the right options, return an exit code.

In: `spark-submit.sh JOB [arguments]`. Out: one call of the job with its settings and session. Read `submit.py` first,
then `entry_point.py`.
"""
