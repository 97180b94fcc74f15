"""Count what the endpoint does, and answer Prometheus."""
