-- list_offsets_expirations_rows: each count of requests that timed out.
SELECT run_id, topic, partition, expired_ms, request_count, timeout_ms FROM IDENTIFIER(:list_offsets_expirations)
