"""model: the nouns of a remote log: ids, states, depths. No I/O, no Spark, nothing but values."""
