-- partition_metadata_rows: each partition, compared with the totals of its segments.
--
-- One row per partition and incarnation of its topic, from partition_metadata or counted from segments. A row that an
-- earlier release wrote has no finished_max_timestamp_ms; the next run sets it.
WITH counted AS (
  SELECT
    topic, partition, topic_id,
    count_if(NOT is_deleted) AS segment_count,
    count(served_from_offset) AS served_segment_count,
    count_if(NOT is_deleted) - count(served_from_offset) AS unserved_segment_count,
    count_if(index_status = 'pending') AS pending_segment_count,
    count_if(index_status = 'quarantined') AS quarantined_segment_count,
    count_if(served_from_offset IS NOT NULL AND NOT txn_index_empty) AS txn_index_segment_count,
    bool_and(ifnull(txn_index_empty, false)) FILTER (WHERE served_from_offset IS NOT NULL) AS txn_index_empty,
    ifnull(sum(size_bytes) FILTER (WHERE served_from_offset IS NOT NULL), 0) AS size_bytes,
    ifnull(sum(record_count) FILTER (WHERE served_from_offset IS NOT NULL), 0) AS record_count,
    min(served_from_offset) AS earliest_offset,
    max(served_to_offset) AS latest_tiered_offset,
    max(running_max_timestamp_ms) AS max_timestamp_ms,
    max(ifnull(CASE
      WHEN index_status <> 'indexed' THEN announced_max_timestamp_ms
      WHEN NOT ifnull(exists(lost, hole -> hole.max_timestamp_bound_ms IS NULL), false)
        THEN greatest(ifnull(announced_max_timestamp_ms, metadata_max_timestamp_ms), counted_max_timestamp_ms,
                      array_max(transform(lost, hole -> hole.max_timestamp_bound_ms)))
    END, 9223372036854775807)) FILTER (WHERE state = 'COPY_SEGMENT_FINISHED' AND index_status <> 'orphan') AS finished_max_timestamp_ms,
    count_if(missing_offset_count <> 0) AS gap_count,
    max_by(if(is_cut, served_open_from_offset, open_from_offset), served_to_offset) AS open_from_offset,
    max_by(CASE WHEN NOT is_cut THEN open_transaction_count WHEN served_open_from_offset IS NULL THEN 0 END,
           served_to_offset) AS open_transaction_count
  FROM (
    SELECT *, served_from_offset - 1 - lag(served_to_offset) OVER (
      PARTITION BY topic, partition, topic_id, served_from_offset IS NOT NULL ORDER BY served_from_offset, segment_id
    ) AS missing_offset_count,
    index_status = 'gone' AND ifnull(state LIKE 'DELETE%', false) AS is_deleted,
    ifnull(served_to_offset < greatest(end_offset, announced_end_offset), false) AS is_cut,
    filter(holes, hole -> hole.to_offset IS NULL OR hole.to_offset >= hole.from_offset) AS lost
    FROM IDENTIFIER(:segments)
  )
  GROUP BY topic, partition, topic_id
),
told AS (
  SELECT *, count_if(is_current) OVER (PARTITION BY topic, partition) AS current_count,
         count(*) OVER (PARTITION BY topic, partition, topic_id) AS key_count
  FROM IDENTIFIER(:partition_metadata)
)
SELECT
  topic, partition, topic_id, told.key_count - 1 AS further_key_count, told.current_count,
  CASE WHEN told.key_count IS NULL THEN 'segments, but no row' WHEN c.segment_count IS NULL THEN 'a row, but no segment' END
    AS lacking,
  told.log_start_offset,
  if(told.log_start_offset IS NULL, told.log_start_source, ifnull(told.log_start_source, 'none')) AS log_start_source,
  if(told.is_current, l.log_start_offset, NULL) AS supplied_log_start_offset,
  told.max_timestamp_offset,
  size(filter(transform(told.leader_epoch_lineage, (e, i) ->
    e.leader_epoch <= get(told.leader_epoch_lineage, i - 1).leader_epoch
    OR e.start_offset <= get(told.leader_epoch_lineage, i - 1).start_offset), is_wrong -> is_wrong)) AS wrong_epoch_count,
  told.segment_count, c.segment_count AS segment_count_of_segments,
  told.served_segment_count, c.served_segment_count AS served_segment_count_of_segments,
  told.unserved_segment_count, c.unserved_segment_count AS unserved_segment_count_of_segments,
  told.pending_segment_count, c.pending_segment_count AS pending_segment_count_of_segments,
  told.quarantined_segment_count, c.quarantined_segment_count AS quarantined_segment_count_of_segments,
  told.txn_index_segment_count, c.txn_index_segment_count AS txn_index_segment_count_of_segments,
  told.txn_index_empty, c.txn_index_empty AS txn_index_empty_of_segments,
  told.size_bytes, c.size_bytes AS size_bytes_of_segments,
  told.record_count, c.record_count AS record_count_of_segments,
  told.earliest_offset, c.earliest_offset AS earliest_offset_of_segments,
  told.latest_tiered_offset, c.latest_tiered_offset AS latest_tiered_offset_of_segments,
  told.max_timestamp_ms, c.max_timestamp_ms AS max_timestamp_ms_of_segments,
  told.finished_max_timestamp_ms,
  if(told.finished_max_timestamp_ms IS NULL, NULL, c.finished_max_timestamp_ms) AS finished_max_timestamp_ms_of_segments,
  told.gap_count, c.gap_count AS gap_count_of_segments,
  told.stable_offset,
  if(c.latest_tiered_offset IS NULL, NULL, least(c.latest_tiered_offset + 1, c.open_from_offset))
    AS stable_offset_of_segments,
  told.open_transaction_count, c.open_transaction_count AS open_transaction_count_of_segments
FROM told
FULL OUTER JOIN counted c USING (topic, partition, topic_id)
LEFT JOIN IDENTIFIER(:log_start_offsets) l USING (topic, partition)
