"""What is in tables, as tests compare it."""
