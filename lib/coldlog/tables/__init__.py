"""Define the Delta tables of a warehouse (`definitions`), and read and write them (`delta`)."""
