"""Define the tables of the tier's own work: partitions, quotas, schedule."""
