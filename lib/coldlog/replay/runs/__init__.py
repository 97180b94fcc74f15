"""Run replays as a job: plan a run, sort with Spark, write each record once, continue later. Read `replay.py` first."""
