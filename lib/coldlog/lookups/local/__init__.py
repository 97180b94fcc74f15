"""Ask a broker's log directory, or the brokers, for what is not archived yet. Read `local_tier.py` first."""
