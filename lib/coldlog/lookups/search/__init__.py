"""Find the first record at or after a time in a segment: in the rows of its batches or intervals, and in its log."""
