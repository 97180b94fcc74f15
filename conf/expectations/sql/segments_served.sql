-- segments_served: each served segment, compared with the previous one and its running maxima.
--
-- One row per served segment, with the previous one of its partition.
SELECT
  topic, partition, topic_id, served_from_offset, segment_id, served_to_offset,
  served_from_offset - lag(served_to_offset) OVER in_partition - 1 AS missing_offset_count,
  previous_running_max_timestamp_ms,
  lag(running_max_timestamp_ms) OVER in_partition AS running_max_before_ms,
  running_max_timestamp_ms,
  if(served_to_offset >= end_offset AND served_build_number = build_number, greatest(previous_running_max_timestamp_ms, counted_max_timestamp_ms), running_max_timestamp_ms)
    AS running_max_of_data_ms,
  CASE WHEN running_max_timestamp_ms < previous_running_max_timestamp_ms
         OR running_max_timestamp_ms IS NULL AND previous_running_max_timestamp_ms IS NOT NULL
    THEN concat(previous_running_max_timestamp_ms, ' to ', ifnull(string(running_max_timestamp_ms), 'none'))
  END AS running_max_fall,
  broker_previous_running_max_timestamp_ms,
  lag(broker_running_max_timestamp_ms) OVER in_partition AS broker_running_max_before_ms,
  broker_running_max_timestamp_ms,
  CASE WHEN broker_running_max_timestamp_ms < broker_previous_running_max_timestamp_ms
         OR broker_running_max_timestamp_ms IS NULL AND broker_previous_running_max_timestamp_ms IS NOT NULL
    THEN concat(broker_previous_running_max_timestamp_ms, ' to ', ifnull(string(broker_running_max_timestamp_ms), 'none'))
  END AS broker_running_max_fall,
  if(is_within_lineage IS FALSE, broker_previous_running_max_timestamp_ms,
     greatest(broker_previous_running_max_timestamp_ms, coalesce(announced_max_timestamp_ms, metadata_max_timestamp_ms)))
    AS broker_running_max_of_metadata_ms,
  start_offset, greatest(end_offset, announced_end_offset) AS greatest_end_offset
FROM IDENTIFIER(:segments)
WHERE served_from_offset IS NOT NULL
WINDOW in_partition AS (PARTITION BY topic, partition, topic_id ORDER BY served_from_offset, segment_id)
