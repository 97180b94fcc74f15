"""Answer offset and timestamp questions from the published tables, in SQL (`sql/`) and Python (`list_offsets.py`)."""
