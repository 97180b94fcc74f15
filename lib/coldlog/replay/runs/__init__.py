"""Run replays as a job: plan runs, sort with Spark, write each record once, go on. Read `replay.py` first."""
