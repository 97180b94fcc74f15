"""Decide what is copied, how fast, what expires, and when: rules alone, on a given clock."""
