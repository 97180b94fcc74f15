"""Stores and file systems that tests watch, or that fail."""
