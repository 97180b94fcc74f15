-- txn_index_rows: each aborted transaction, compared with its segment and the marker of its producer.
--
-- One row per aborted transaction, of builds after :after_build, with its segment and the control batch at its end.
SELECT
  x.topic, x.partition, x.segment_id, x.build_number, x.producer_id, x.first_offset, x.last_offset,
  x.last_offset + 1 AS offset_behind, x.last_stable_offset,
  x.topic_id, s.topic_id AS topic_id_of_segment,
  s.start_offset AS segment_start_offset, s.end_offset AS segment_end_offset,
  CASE WHEN s.segment_id IS NULL AND o.segment_id IS NULL
         AND x.build_number <= (SELECT max(build_number) FROM IDENTIFIER(:segments))
    THEN concat('build ', x.build_number) END AS unclaimed_row,
  CASE WHEN s.segment_id IS NULL OR s.index_depth = 'sidecar' THEN NULL
       WHEN m.producer_id IS NULL THEN 'no control batch there'
       WHEN m.producer_id <> x.producer_id THEN concat('a marker of producer ', m.producer_id) END AS wrong_marker
FROM IDENTIFIER(:txn_index) x
LEFT JOIN IDENTIFIER(:segments) s
  ON s.topic = x.topic AND s.partition = x.partition AND s.segment_id = x.segment_id AND s.build_number = x.build_number
LEFT JOIN (
  SELECT topic, partition, segment_id, build_number, last_offset, producer_id
  FROM IDENTIFIER(:offset_index)
  WHERE build_number > :after_build AND is_control
) m
  ON m.topic = x.topic AND m.partition = x.partition AND m.segment_id = x.segment_id
 AND m.build_number = x.build_number AND m.last_offset = x.last_offset
LEFT JOIN (
  SELECT topic, partition, segment_id, explode(superseded_build_numbers) AS build_number
  FROM IDENTIFIER(:segments)
) o
  ON o.topic = x.topic AND o.partition = x.partition AND o.segment_id = x.segment_id AND o.build_number = x.build_number
WHERE x.build_number > :after_build
