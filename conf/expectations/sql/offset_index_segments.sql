-- offset_index_segments: the batches of each segment, compared with each other and with table segments.
--
-- One row per segment and build, of builds after :after_build, with counts of its batches beside those of table segments.
-- `first_wrong_offset` is the base offset of the first batch that is wrong in itself or does not fit the previous one.
-- Table segments is compared only while the segment is indexed, because only then it describes these batches, and not at
-- sidecar depth, which has none. The log of
-- the last segment of a mirror may continue after its last whole batch.
WITH in_order AS (
  SELECT
    topic, partition, topic_id, segment_id, build_number, base_offset, last_offset, position, size_bytes, leader_epoch,
    max_timestamp_ms, previous_running_max_timestamp_ms, running_max_timestamp_ms, record_count, codec, timestamp_type,
    is_transactional, is_control, producer_id,
    lag(base_offset) OVER in_segment AS base_offset_before,
    lag(last_offset) OVER in_segment AS last_offset_before,
    lag(position + size_bytes) OVER in_segment AS end_position_before,
    lag(running_max_timestamp_ms) OVER in_segment AS running_max_before_ms,
    lag(leader_epoch) OVER in_segment AS leader_epoch_before
  FROM IDENTIFIER(:offset_index)
  WHERE build_number > :after_build
  WINDOW in_segment AS (PARTITION BY topic, partition, segment_id, build_number ORDER BY base_offset, position)
),
judged AS (
  SELECT
    *,
    ifnull(base_offset = base_offset_before, false) AS is_repeated,
    ifnull(base_offset <= last_offset_before, false) AS is_overlapping,
    ifnull(base_offset > last_offset_before + 1, false) AS is_behind_gap,
    last_offset < base_offset AS is_backward,
    position <> ifnull(end_position_before, 0) AS is_misplaced,
    ifnull(running_max_timestamp_ms < previous_running_max_timestamp_ms,
           running_max_timestamp_ms IS NULL AND previous_running_max_timestamp_ms IS NOT NULL) AS is_falling,
    previous_running_max_timestamp_ms IS DISTINCT FROM running_max_before_ms AS is_unlinked,
    ifnull(running_max_timestamp_ms > greatest(previous_running_max_timestamp_ms, max_timestamp_ms), false) AS is_excessive,
    ifnull(leader_epoch < leader_epoch_before, false) AS is_of_fallen_epoch,
    size_bytes < 61 AS is_too_small,
    record_count < 0 OR record_count > last_offset - base_offset + 1 AS is_miscounted,
    codec NOT IN ('none', 'gzip', 'snappy', 'lz4', 'zstd') AS is_of_strange_codec,
    timestamp_type NOT IN ('CreateTime', 'LogAppendTime') AS is_of_strange_timestamp_type,
    is_transactional AND producer_id < 0 AS is_without_producer
  FROM in_order
),
found AS (
  SELECT
    topic, partition, segment_id, build_number, min(topic_id) AS topic_id, count(DISTINCT topic_id) AS topic_id_count,
    count(*) AS batch_count, sum(record_count) AS record_count, count_if(is_control) AS control_batch_count,
    min(base_offset) AS start_offset, max(last_offset) AS end_offset, max(position + size_bytes) AS size_bytes,
    max(max_timestamp_ms) AS header_max_timestamp_ms, max(running_max_timestamp_ms) AS running_max_timestamp_ms,
    array_join(sort_array(collect_set(codec)), ', ') AS codecs,
    array_join(transform(
      sort_array(collect_list(if(leader_epoch IS DISTINCT FROM leader_epoch_before, struct(base_offset, leader_epoch), NULL))),
      e -> concat(e.leader_epoch, ' from ', e.base_offset)), ', ') AS leader_epochs,
    min(if(is_repeated OR is_overlapping OR is_backward OR is_misplaced OR is_falling OR is_unlinked OR is_excessive
           OR is_of_fallen_epoch OR is_too_small OR is_miscounted OR is_of_strange_codec
           OR is_of_strange_timestamp_type OR is_without_producer OR is_behind_gap, base_offset, NULL)) AS first_wrong_offset,
    count_if(is_repeated) AS repeated_batch_count,
    count_if(is_overlapping) AS overlapping_batch_count,
    count_if(is_behind_gap) AS gap_count,
    count_if(is_backward) AS backward_batch_count,
    count_if(is_misplaced) AS misplaced_batch_count,
    count_if(is_falling) AS falling_batch_count,
    count_if(is_unlinked) AS unlinked_batch_count,
    count_if(is_excessive) AS excessive_batch_count,
    count_if(is_of_fallen_epoch) AS fallen_epoch_batch_count,
    count_if(is_too_small) AS too_small_batch_count,
    count_if(is_miscounted) AS miscounted_batch_count,
    count_if(is_of_strange_codec) AS strange_codec_batch_count,
    count_if(is_of_strange_timestamp_type) AS strange_timestamp_type_batch_count,
    count_if(is_without_producer) AS producerless_batch_count
  FROM judged
  GROUP BY topic, partition, segment_id, build_number
),
told AS (
  SELECT *, index_status = 'indexed' AND index_depth <> 'sidecar' AS is_indexed
  FROM (
    SELECT *, start_offset = max(start_offset) OVER (PARTITION BY topic, partition, topic_id) AS is_last
    FROM IDENTIFIER(:segments)
  )
  WHERE build_number > :after_build
),
superseded AS (
  SELECT topic, partition, segment_id, explode(superseded_build_numbers) AS build_number, true AS is_superseded
  FROM IDENTIFIER(:segments)
)
SELECT
  topic, partition, told.start_offset, segment_id, build_number, found.first_wrong_offset,
  ifnull(found.batch_count, 0) AS row_count,
  CASE WHEN told.state IS NULL AND is_superseded IS NULL
         AND build_number <= (SELECT max(build_number) FROM IDENTIFIER(:segments))
    THEN concat(found.batch_count, ' batches of build ', build_number) END AS unclaimed_rows,
  if(told.is_indexed, told.topic_id, NULL) AS topic_id,
  if(told.is_indexed, if(found.topic_id_count > 1, 'several', found.topic_id), NULL) AS topic_id_of_batches,
  if(told.is_indexed, told.batch_count, NULL) AS batch_count,
  if(told.is_indexed, ifnull(found.batch_count, 0), NULL) AS batch_count_of_batches,
  if(told.is_indexed, told.record_count, NULL) AS record_count,
  if(told.is_indexed, ifnull(found.record_count, 0), NULL) AS record_count_of_batches,
  if(told.is_indexed, told.control_batch_count, NULL) AS control_batch_count,
  if(told.is_indexed, ifnull(found.control_batch_count, 0), NULL) AS control_batch_count_of_batches,
  if(told.is_indexed, told.start_offset, NULL) AS start_offset_told,
  if(told.is_indexed, found.start_offset, NULL) AS start_offset_of_batches,
  if(told.is_indexed, told.end_offset, NULL) AS end_offset,
  if(told.is_indexed, found.end_offset, NULL) AS end_offset_of_batches,
  if(told.is_indexed AND NOT told.is_last, told.size_bytes, NULL) AS size_bytes,
  if(told.is_indexed AND NOT told.is_last, found.size_bytes, NULL) AS size_bytes_of_batches,
  if(told.is_indexed, told.size_bytes, NULL) AS log_bytes,
  if(told.is_indexed, found.size_bytes, NULL) AS end_position_of_batches,
  if(told.is_indexed, told.counted_max_timestamp_ms, NULL) AS counted_max_timestamp_ms,
  if(told.is_indexed, found.running_max_timestamp_ms, NULL) AS counted_max_timestamp_ms_of_batches,
  if(told.is_indexed AND told.counted_from_offset = told.start_offset, told.max_timestamp_ms, NULL) AS max_timestamp_ms,
  if(told.is_indexed AND told.counted_from_offset = told.start_offset, found.running_max_timestamp_ms, NULL)
    AS max_timestamp_ms_of_batches,
  if(told.is_indexed AND found.header_max_timestamp_ms >= 0, told.metadata_max_timestamp_ms, NULL)
    AS metadata_max_timestamp_ms,
  if(told.is_indexed AND found.header_max_timestamp_ms >= 0, found.header_max_timestamp_ms, NULL)
    AS metadata_max_timestamp_ms_of_batches,
  if(told.is_indexed, array_join(sort_array(told.codecs), ', '), NULL) AS codecs,
  if(told.is_indexed, found.codecs, NULL) AS codecs_of_batches,
  if(told.is_indexed, array_join(transform(told.segment_leader_epochs,
    e -> concat(e.leader_epoch, ' from ', e.start_offset)), ', '), NULL) AS leader_epochs,
  if(told.is_indexed, found.leader_epochs, NULL) AS leader_epochs_of_batches,
  found.repeated_batch_count, found.overlapping_batch_count, found.gap_count, found.backward_batch_count,
  found.misplaced_batch_count, found.falling_batch_count, found.unlinked_batch_count, found.excessive_batch_count,
  found.fallen_epoch_batch_count, found.too_small_batch_count, found.miscounted_batch_count,
  found.strange_codec_batch_count, found.strange_timestamp_type_batch_count, found.producerless_batch_count
FROM told
FULL OUTER JOIN found USING (topic, partition, segment_id, build_number)
LEFT JOIN superseded USING (topic, partition, segment_id, build_number)
