"""lookups: which offset, which segment, which time? Questions as SQL over the published tables."""
