"""Start Spark when it is needed, exchange rows with it, and say what its failures mean."""
