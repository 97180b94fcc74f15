"""formats: what do the bytes say? Pure functions from bytes to headers, records and entries; no I/O, no clock, no
Spark."""
