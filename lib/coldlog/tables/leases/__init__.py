"""Let one job at a time write a warehouse: a lock in a folder, a lease in a bucket."""
