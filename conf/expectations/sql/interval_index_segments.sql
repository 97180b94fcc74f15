-- interval_index_segments: the intervals of each segment, compared with each other and with table segments.
--
-- One row per segment and build, of builds after :after_build, with counts of its intervals beside what table segments
-- has. `first_wrong_offset` is the after_offset of the first interval that is wrong in itself or does not fit the previous
-- one; an earlier version wrote a last interval without offsets, which is harmless. Table segments is compared only while
-- the segment is indexed at sidecar depth.
WITH in_order AS (
  SELECT
    *,
    lag(last_offset) OVER in_segment AS last_offset_before,
    lag(position) OVER in_segment AS position_before,
    lag(position + size_bytes) OVER in_segment AS end_position_before,
    lag(running_max_timestamp_ms) OVER in_segment AS running_max_before_ms
  FROM IDENTIFIER(:interval_index)
  WHERE build_number > :after_build
  WINDOW in_segment AS (PARTITION BY topic, partition, segment_id, build_number ORDER BY after_offset, position)
),
judged AS (
  SELECT
    *,
    after_offset <> ifnull(last_offset_before, after_offset) OR last_offset < after_offset AS is_unlinked,
    position <= ifnull(position_before, -1) OR position > ifnull(end_position_before, 0) OR size_bytes <= 0 AS is_misplaced,
    ifnull(running_max_timestamp_ms < previous_running_max_timestamp_ms,
           running_max_timestamp_ms IS NULL AND previous_running_max_timestamp_ms IS NOT NULL)
      OR previous_running_max_timestamp_ms IS DISTINCT FROM running_max_before_ms AS is_falling
  FROM in_order
),
found AS (
  SELECT
    topic, partition, segment_id, build_number, min(topic_id) AS topic_id, count(DISTINCT topic_id) AS topic_id_count,
    count(*) AS interval_count, min(after_offset) + 1 AS start_offset, max(last_offset) AS end_offset,
    max(position + size_bytes) AS size_bytes, max(running_max_timestamp_ms) AS running_max_timestamp_ms,
    min(if(is_unlinked OR is_misplaced OR is_falling, after_offset, NULL)) AS first_wrong_offset,
    count_if(is_unlinked) AS unlinked_interval_count,
    count_if(is_misplaced) AS misplaced_interval_count,
    count_if(is_falling) AS falling_interval_count
  FROM judged
  GROUP BY topic, partition, segment_id, build_number
),
told AS (
  SELECT *, index_status = 'indexed' AND index_depth = 'sidecar' AS is_indexed
  FROM IDENTIFIER(:segments)
  WHERE build_number > :after_build
),
superseded AS (
  SELECT topic, partition, segment_id, explode(superseded_build_numbers) AS build_number, true AS is_superseded
  FROM IDENTIFIER(:segments)
)
SELECT
  topic, partition, told.start_offset, segment_id, build_number, found.first_wrong_offset,
  ifnull(found.interval_count, 0) AS row_count,
  CASE WHEN told.state IS NULL AND is_superseded IS NULL
         AND build_number <= (SELECT max(build_number) FROM IDENTIFIER(:segments))
    THEN concat(found.interval_count, ' intervals of build ', build_number) END AS unclaimed_rows,
  if(told.is_indexed, told.topic_id, NULL) AS topic_id,
  if(told.is_indexed, if(found.topic_id_count > 1, 'several', found.topic_id), NULL) AS topic_id_of_intervals,
  if(told.is_indexed, told.start_offset, NULL) AS start_offset_told,
  if(told.is_indexed, found.start_offset, NULL) AS start_offset_of_intervals,
  if(told.is_indexed, told.end_offset, NULL) AS end_offset,
  if(told.is_indexed, found.end_offset, NULL) AS end_offset_of_intervals,
  if(told.is_indexed, told.size_bytes, NULL) AS size_bytes,
  if(told.is_indexed, found.size_bytes, NULL) AS size_bytes_of_intervals,
  if(told.is_indexed, told.counted_max_timestamp_ms, NULL) AS counted_max_timestamp_ms,
  if(told.is_indexed, found.running_max_timestamp_ms, NULL) AS counted_max_timestamp_ms_of_intervals,
  found.unlinked_interval_count, found.misplaced_interval_count, found.falling_interval_count
FROM told
FULL OUTER JOIN found USING (topic, partition, segment_id, build_number)
LEFT JOIN superseded USING (topic, partition, segment_id, build_number)
