-- list_offsets_expirations_rows: is each count of requests that timed out one of some requests, and told once?
SELECT run_id, topic, partition, expired_ms, request_count, timeout_ms FROM IDENTIFIER(:list_offsets_expirations)
