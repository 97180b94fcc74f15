"""Define the values of a remote log: ids, states, requests, answers. No I/O, no Spark."""
