-- txn_segments_rows: each segment that may hold aborts, with the offsets for which it is the next one.
--
-- One row per row of txn_segments with its segment, and one row per served segment that may hold aborts but has no row.
WITH rows_in_order AS (
  SELECT *,
    epoch_from_offset - lag(to_offset) OVER (
      PARTITION BY topic, partition, topic_id, leader_epoch ORDER BY to_offset) AS epoch_distance,
    log_from_offset - lag(to_offset) OVER (PARTITION BY topic, partition, topic_id ORDER BY to_offset) AS log_distance
  FROM IDENTIFIER(:txn_segments)
),
may_hold AS (
  SELECT topic, partition, topic_id, segment_id, start_offset, greatest(end_offset, announced_end_offset) AS end_offset,
         served_from_offset, served_to_offset, txn_index_empty IS FALSE AS is_certain
  FROM IDENTIFIER(:segments)
  WHERE served_from_offset IS NOT NULL AND txn_index_empty IS NOT TRUE
)
SELECT
  topic, partition, topic_id, segment_id, r.leader_epoch, r.to_offset, r.epoch_from_offset, r.log_from_offset,
  CASE WHEN r.segment_id IS NULL THEN 'no row for it' WHEN s.segment_id IS NULL THEN 'not served, or without aborts' END
    AS lacking,
  r.epoch_distance, r.log_distance, s.served_from_offset, s.served_to_offset,
  if(r.segment_id IS NOT NULL AND s.segment_id IS NOT NULL, r.start_offset, NULL) AS start_offset,
  if(r.segment_id IS NOT NULL AND s.segment_id IS NOT NULL, s.start_offset, NULL) AS start_offset_of_segment,
  if(r.segment_id IS NOT NULL AND s.segment_id IS NOT NULL, r.end_offset, NULL) AS end_offset,
  if(r.segment_id IS NOT NULL AND s.segment_id IS NOT NULL, s.end_offset, NULL) AS end_offset_of_segment,
  if(r.segment_id IS NOT NULL AND s.segment_id IS NOT NULL, r.is_certain, NULL) AS is_certain,
  if(r.segment_id IS NOT NULL AND s.segment_id IS NOT NULL, s.is_certain, NULL) AS is_certain_of_segment
FROM rows_in_order r
FULL OUTER JOIN may_hold s USING (topic, partition, topic_id, segment_id)
