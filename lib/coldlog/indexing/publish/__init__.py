"""Decide which offsets each segment serves and publish that in one commit. Read `materialize.py` first."""
