"""builders: segments, archives and answers made from a model, without a line of coldlog's own readers."""
