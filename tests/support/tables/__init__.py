"""Tables that are written without a pipeline."""
