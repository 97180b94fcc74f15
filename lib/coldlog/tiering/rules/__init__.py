"""Decide which segments are copied, how fast, which expire, and when. Pure rules with a given clock."""
