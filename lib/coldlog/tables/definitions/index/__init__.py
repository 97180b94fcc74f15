"""Define the tables with the index of logs."""
