"""Read and write the records of the metadata topic."""
