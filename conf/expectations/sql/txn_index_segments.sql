-- txn_index_segments: each segment's aborted transactions, compared with table segments.
--
-- One row per indexed segment, of builds after :after_build.
SELECT
  s.topic, s.partition, s.start_offset, s.segment_id, s.build_number,
  s.txn_index_empty IS FALSE AS has_aborts, ifnull(x.abort_count, 0) > 0 AS has_rows,
  s.abort_marker_count, ifnull(x.abort_count, 0) AS abort_count
FROM IDENTIFIER(:segments) s
LEFT JOIN (
  SELECT topic, partition, segment_id, build_number, count(*) AS abort_count
  FROM IDENTIFIER(:txn_index)
  WHERE build_number > :after_build
  GROUP BY topic, partition, segment_id, build_number
) x
  ON x.topic = s.topic AND x.partition = s.partition AND x.segment_id = s.segment_id AND x.build_number = s.build_number
WHERE s.build_number > :after_build AND s.index_status = 'indexed'
