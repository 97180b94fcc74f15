-- discrepancies_rows: each discrepancy with its kind, its severity and its segment.
SELECT
  d.topic, d.partition, d.start_offset, d.segment_id, d.kind, concat(d.kind, ': ', d.severity) AS kind_and_severity,
  s.segment_id AS known_segment_id, d.first_seen_ms, nullif(d.advice, '') AS advice
FROM IDENTIFIER(:discrepancies) d
LEFT JOIN IDENTIFIER(:segments) s
  ON s.topic = d.topic AND s.partition = d.partition AND s.start_offset = d.start_offset AND s.segment_id = d.segment_id
