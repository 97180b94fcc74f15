"""Turn a command into a running job: find the job, start Spark with the right options, return an exit code.

In: `spark-submit.sh JOB [arguments]`. Out: one call of the job's function with settings and a session. Read `submit.py`
first, then `entry_point.py`.
"""
