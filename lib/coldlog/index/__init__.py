"""index: what must a lookup know? Pure functions from batches to running maxima, stairs and served ranges."""
