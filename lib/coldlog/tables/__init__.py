"""Define the Delta tables of a warehouse (`definitions`), read and write them (`delta`), let one job write
(`leases`)."""
