-- quarantine_rows: each row of quarantine, compared with its segment.
--
-- One row per row of quarantine with its segment, and one row per quarantined segment that is missing in quarantine.
SELECT
  topic, partition, start_offset, segment_id, q.reason, q.first_seen_ms, q.last_seen_ms, q.attempt_count,
  if(q.reason IS NULL, 'no row for it', NULL) AS lacking,
  if(q.message = '' OR q.object_name = '', 'no message or object', NULL) AS untold,
  CASE WHEN q.reason IS NULL THEN NULL
       WHEN topic = '__remote_log_metadata' THEN 'metadata topic'
       ELSE ifnull(s.index_status, 'no segment') END AS segment_status
FROM IDENTIFIER(:quarantine) q
FULL OUTER JOIN (
  SELECT topic, partition, start_offset, segment_id, index_status FROM IDENTIFIER(:segments)
) s USING (topic, partition, start_offset, segment_id)
WHERE q.reason IS NOT NULL OR s.index_status = 'quarantined'
