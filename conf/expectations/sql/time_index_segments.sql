-- time_index_segments: the stairs of each segment, compared with each other, their batches and the largest timestamp.
--
-- One row per segment and build, of builds after :after_build, with counts of its stairs beside those of table segments
-- and offset_index. `first_wrong_offset` is the offset of the first stair that is wrong in itself, or does not fit the
-- previous one or its batch.
WITH batches AS (
  SELECT topic, partition, segment_id, build_number, base_offset, last_offset, leader_epoch,
         previous_running_max_timestamp_ms, running_max_timestamp_ms
  FROM IDENTIFIER(:offset_index)
  WHERE build_number > :after_build
),
in_order AS (
  SELECT
    t.topic, t.partition, t.topic_id, t.segment_id, t.build_number, t.batch_base_offset, t.offset, t.timestamp_ms,
    t.previous_timestamp_ms, t.leader_epoch,
    b.last_offset AS batch_last_offset, b.leader_epoch AS batch_leader_epoch,
    b.previous_running_max_timestamp_ms, b.running_max_timestamp_ms,
    lag(t.offset) OVER in_segment AS offset_before,
    lag(t.timestamp_ms) OVER in_segment AS timestamp_before_ms
  FROM IDENTIFIER(:time_index) t
  LEFT JOIN batches b
    ON b.topic = t.topic AND b.partition = t.partition AND b.segment_id = t.segment_id
   AND b.build_number = t.build_number AND b.base_offset = t.batch_base_offset
  WHERE t.build_number > :after_build
  WINDOW in_segment AS (PARTITION BY t.topic, t.partition, t.segment_id, t.build_number ORDER BY t.offset, t.timestamp_ms)
),
judged AS (
  SELECT
    *,
    ifnull(offset = offset_before, false) AS is_repeated,
    ifnull(timestamp_ms <= timestamp_before_ms, false) AS is_not_rising,
    previous_timestamp_ms IS DISTINCT FROM timestamp_before_ms AS is_unlinked,
    ifnull(offset NOT BETWEEN batch_base_offset AND batch_last_offset, true) AS is_outside_batch,
    ifnull(timestamp_ms > running_max_timestamp_ms OR timestamp_ms <= previous_running_max_timestamp_ms, false)
      AS is_outside_interval,
    ifnull(leader_epoch <> batch_leader_epoch, false) AS is_of_other_epoch
  FROM in_order
),
found AS (
  SELECT
    topic, partition, segment_id, build_number, min(topic_id) AS topic_id, count(DISTINCT topic_id) AS topic_id_count,
    count(*) AS stair_count, count(DISTINCT batch_base_offset) AS rising_batch_count,
    min(offset) AS start_offset, max_by(timestamp_ms, offset) AS max_timestamp_ms, max(offset) AS max_timestamp_offset,
    min(if(is_repeated OR is_not_rising OR is_unlinked OR is_outside_batch OR is_outside_interval OR is_of_other_epoch,
           offset, NULL)) AS first_wrong_offset,
    count_if(is_repeated) AS repeated_stair_count,
    count_if(is_not_rising) AS not_rising_stair_count,
    count_if(is_unlinked) AS unlinked_stair_count,
    count_if(is_outside_batch) AS outside_batch_stair_count,
    count_if(is_outside_interval) AS outside_interval_stair_count,
    count_if(is_of_other_epoch) AS other_epoch_stair_count
  FROM judged
  GROUP BY topic, partition, segment_id, build_number
),
rising AS (
  SELECT topic, partition, segment_id, build_number,
         count_if(running_max_timestamp_ms IS DISTINCT FROM previous_running_max_timestamp_ms) AS batch_count
  FROM batches
  GROUP BY topic, partition, segment_id, build_number
),
told AS (
  SELECT *, index_status = 'indexed' AND index_depth = 'record' AS is_decoded
  FROM IDENTIFIER(:segments)
  WHERE build_number > :after_build
),
superseded AS (
  SELECT topic, partition, segment_id, explode(superseded_build_numbers) AS build_number, true AS is_superseded
  FROM IDENTIFIER(:segments)
)
SELECT
  topic, partition, told.start_offset, segment_id, build_number, found.first_wrong_offset,
  ifnull(found.stair_count, 0) AS row_count,
  CASE WHEN told.state IS NULL AND is_superseded IS NULL
         AND build_number <= (SELECT max(build_number) FROM IDENTIFIER(:segments))
    THEN concat(found.stair_count, ' stairs of build ', build_number) END AS unclaimed_rows,
  if(told.index_depth IN ('batch', 'sidecar'), ifnull(found.stair_count, 0), NULL) AS stair_count_at_batch_depth,
  if(told.is_decoded AND found.stair_count > 0, told.topic_id, NULL) AS topic_id,
  if(told.is_decoded AND found.stair_count > 0, if(found.topic_id_count > 1, 'several', found.topic_id), NULL)
    AS topic_id_of_stairs,
  if(told.is_decoded, told.counted_from_offset, NULL) AS counted_from_offset,
  if(told.is_decoded, found.start_offset, NULL) AS first_stair_offset,
  if(told.is_decoded, told.counted_max_timestamp_ms, NULL) AS counted_max_timestamp_ms,
  if(told.is_decoded, found.max_timestamp_ms, NULL) AS counted_max_timestamp_ms_of_stairs,
  if(told.is_decoded, told.counted_max_timestamp_offset, NULL) AS counted_max_timestamp_offset,
  if(told.is_decoded, found.max_timestamp_offset, NULL) AS counted_max_timestamp_offset_of_stairs,
  if(told.is_decoded, ifnull(rising.batch_count, 0), NULL) AS rising_batch_count,
  if(told.is_decoded, ifnull(found.rising_batch_count, 0), NULL) AS rising_batch_count_of_stairs,
  found.repeated_stair_count, found.not_rising_stair_count, found.unlinked_stair_count, found.outside_batch_stair_count,
  found.outside_interval_stair_count, found.other_epoch_stair_count
FROM told
FULL OUTER JOIN found USING (topic, partition, segment_id, build_number)
LEFT JOIN superseded USING (topic, partition, segment_id, build_number)
LEFT JOIN rising USING (topic, partition, segment_id, build_number)
