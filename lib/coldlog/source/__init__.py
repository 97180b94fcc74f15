"""source: archived records as a DataFrame."""
