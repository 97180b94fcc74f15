"""tier: what is copied, how fast, what expires, and when is each partition processed? Rules alone, on a given clock."""
