"""Read the events of the metadata topic and fold them into the state of each segment. Read `read_events.py` first."""
