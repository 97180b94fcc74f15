"""tables: where is it kept? One module a Delta table: schema, keys, clustering, comments, idempotent writes."""
