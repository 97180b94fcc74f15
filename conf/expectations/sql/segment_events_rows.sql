-- segment_events_rows: each event beside the one before it in its metadata partition, and of its segment or partition.
--
-- Compaction may leave a hole before a record with a key. A row of kind lost stands for all records before it. A row of
-- kind forgotten stands for event_count records, of which it is the last: what is missing before it is not known.
SELECT
  metadata_partition, metadata_offset, event_kind, state, topic, partition, segment_id, start_offset, end_offset,
  CASE WHEN record_key IS NULL AND event_kind <> 'lost'
        AND metadata_offset > ifnull(max(if(event_kind = 'forgotten', metadata_offset, NULL))
          OVER (PARTITION BY metadata_partition), -1) THEN
    metadata_offset - 1 - lag(metadata_offset) OVER (PARTITION BY metadata_partition ORDER BY metadata_offset)
  END AS missing_offset_count,
  CASE WHEN event_kind IN ('segment', 'segment_update', 'partition_delete') THEN concat(
    ifnull(lag(state) OVER (
      PARTITION BY topic, partition, topic_id, segment_id, event_kind = 'partition_delete', event_kind = 'unreadable'
      ORDER BY metadata_partition, metadata_offset), 'nothing'),
    ' to ', state) END AS transition,
  nullif(concat_ws(', ',
    if(event_kind IN ('segment', 'segment_update', 'partition_delete') AND topic IS NULL, 'topic', NULL),
    if(event_kind IN ('segment', 'segment_update', 'partition_delete') AND topic_id IS NULL, 'topic_id', NULL),
    if(event_kind IN ('segment', 'segment_update', 'partition_delete') AND partition IS NULL, 'partition', NULL),
    if(event_kind IN ('segment', 'segment_update', 'segment_snapshot') AND segment_id IS NULL, 'segment_id', NULL),
    if(event_kind IN ('segment', 'segment_snapshot') AND start_offset IS NULL, 'start_offset', NULL),
    if(event_kind IN ('segment', 'segment_snapshot') AND end_offset IS NULL, 'end_offset', NULL),
    if(event_kind = 'tombstone' AND (topic_id IS NULL OR partition IS NULL), 'topic_id or partition', NULL),
    if(event_kind NOT IN ('unreadable', 'tombstone', 'lost', 'forgotten') AND state IS NULL, 'state', NULL),
    if(event_kind IN ('unreadable', 'lost') AND problem IS NULL, 'problem', NULL),
    if(event_kind = 'forgotten' AND event_count IS NULL, 'event_count', NULL)
  ), '') AS columns_lacking
FROM IDENTIFIER(:segment_events)
