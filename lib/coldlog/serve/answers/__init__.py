"""Answer one kind of request each. `offered.py` lists which, and in which versions."""
