"""What several benchmarks share: generated logs and tables, sizes, processes that are timed."""
