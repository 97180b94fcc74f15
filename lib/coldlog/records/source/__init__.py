"""Archived records as a DataFrame (Spark's API for Python data sources). Read `datasource.py`, then `planning.py`."""
