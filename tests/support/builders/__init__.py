"""Build segments, archives and answers from a model, without code of coldlog's readers."""
