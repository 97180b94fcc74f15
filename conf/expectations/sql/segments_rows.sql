-- segments_rows: each row of segments, with what is inconsistent in it.
--
-- One row per segment. Columns that should be NULL have a text that says what is inconsistent.
SELECT
  topic, partition, topic_id, start_offset, segment_id, end_offset,
  state, state_source, index_status, index_depth, not_served_reason,
  end_offset - start_offset + 1 AS offset_count,
  min_timestamp_ms, max_timestamp_ms, counted_max_timestamp_ms, counted_from_offset,
  max_timestamp_offset, counted_max_timestamp_offset, served_from_offset, served_to_offset,
  greatest(end_offset, announced_end_offset) AS greatest_end_offset,
  batch_count, record_count, control_batch_count, build_number,
  array_max(superseded_build_numbers) AS superseded_build_number,
  commit_marker_count + abort_marker_count AS marker_count,
  CASE WHEN index_status = 'indexed' THEN nullif(concat_ws(', ',
    if(end_offset IS NULL, 'end_offset', NULL),
    if(size_bytes IS NULL, 'size_bytes', NULL),
    if(metadata_max_timestamp_ms IS NULL, 'metadata_max_timestamp_ms', NULL),
    if(segment_leader_epochs IS NULL, 'segment_leader_epochs', NULL),
    if(index_depth IS NULL, 'index_depth', NULL),
    if(build_number IS NULL, 'build_number', NULL),
    if(counted_from_offset IS NULL, 'counted_from_offset', NULL),
    if(batch_count IS NULL AND index_depth <> 'sidecar', 'batch_count', NULL),
    if(record_count IS NULL AND index_depth <> 'sidecar', 'record_count', NULL),
    if(control_batch_count IS NULL AND index_depth <> 'sidecar', 'control_batch_count', NULL),
    if(commit_marker_count IS NULL AND index_depth <> 'sidecar', 'commit_marker_count', NULL),
    if(abort_marker_count IS NULL AND index_depth <> 'sidecar', 'abort_marker_count', NULL),
    if(codecs IS NULL AND index_depth <> 'sidecar', 'codecs', NULL),
    if(leader_epoch_checkpoint IS NULL AND damaged_files IS NULL, 'leader_epoch_checkpoint', NULL),
    if(open_transaction_count IS NULL, 'open_transaction_count', NULL)
  ), '') END AS columns_not_built,
  CASE
    WHEN index_status IN ('indexed', 'pending', 'quarantined')
         AND NOT (is_listed AND state = 'COPY_SEGMENT_FINISHED'
                  AND (size(missing_kinds) = 0
                       OR state_source = 'events' AND size(array_except(missing_kinds, array('offset_index', 'time_index'))) = 0))
      THEN concat(index_status, ' but ', state, if(is_listed, '', ', not listed'),
                  if(size(missing_kinds) = 0, '', concat(', without ', array_join(missing_kinds, ', '))))
    WHEN index_status = 'gone' AND is_listed AND state NOT LIKE 'DELETE%' THEN concat('gone but listed and ', state)
    WHEN index_status = 'orphan' AND (NOT is_listed OR state_source <> 'listing') THEN 'orphan but announced or not listed'
    WHEN is_listed AND size(objects) = 0 THEN 'listed without an object'
  END AS status_contradiction,
  CASE
    WHEN index_status = 'indexed' AND txn_index_empty AND abort_marker_count > 0
      THEN concat('empty transaction index with ', abort_marker_count, ' abort markers')
    WHEN index_status = 'indexed' AND NOT txn_index_empty AND abort_marker_count = 0
      THEN 'transaction index without an abort marker'
  END AS abort_contradiction,
  CASE
    WHEN open_transaction_count > 0 AND open_from_offset IS NULL THEN 'open transactions without an offset'
    WHEN open_transaction_count = 0 AND open_from_offset IS NOT NULL THEN 'an offset without an open transaction'
  END AS open_transaction_contradiction,
  CASE
    WHEN max_timestamp_offset NOT BETWEEN start_offset AND end_offset
      THEN concat('max_timestamp_offset ', max_timestamp_offset)
    WHEN counted_max_timestamp_offset NOT BETWEEN counted_from_offset AND end_offset
      THEN concat('counted_max_timestamp_offset ', counted_max_timestamp_offset)
    WHEN open_from_offset > end_offset THEN concat('open_from_offset ', open_from_offset)
  END AS offset_outside,
  size(filter(transform(segment_leader_epochs, (e, i) ->
    e.leader_epoch <= get(segment_leader_epochs, i - 1).leader_epoch
    OR e.start_offset <= get(segment_leader_epochs, i - 1).start_offset
    OR e.start_offset < start_offset), is_wrong -> is_wrong)) AS wrong_epoch_count,
  size(filter(transform(leader_epoch_checkpoint, (e, i) ->
    e.leader_epoch <= get(leader_epoch_checkpoint, i - 1).leader_epoch
    OR e.start_offset <= get(leader_epoch_checkpoint, i - 1).start_offset), is_wrong -> is_wrong))
    AS wrong_checkpoint_count,
  CASE
    WHEN served_from_offset IS NOT NULL AND served_to_offset IS NULL THEN 'served without an end'
    WHEN served_from_offset IS NULL AND served_to_offset IS NOT NULL THEN 'served without a beginning'
    WHEN served_from_offset IS NOT NULL AND not_served_reason IS NOT NULL
      THEN concat('served and not served: ', not_served_reason)
  END AS served_contradiction,
  CASE
    WHEN (served_from_offset IS NULL) <> (served_build_number IS NULL) THEN 'served without a build, or not served from one'
    WHEN served_build_number <> build_number
         AND NOT ifnull(array_contains(superseded_build_numbers, served_build_number), false)
      THEN concat('served from build ', served_build_number, ', whose rows are not kept')
    WHEN served_build_number = build_number AND served_index_depth IS DISTINCT FROM index_depth
      THEN concat('served at depth ', ifnull(served_index_depth, 'none'), ' and indexed at depth ', index_depth)
  END AS served_build_contradiction,
  CASE
    WHEN served_from_offset IS NULL AND not_served_reason IS NULL THEN 'neither served nor said why not'
    WHEN served_from_offset IS NOT NULL AND index_status <> 'indexed' THEN concat('served, but ', index_status)
    WHEN served_build_number < build_number THEN concat('build ', build_number, ' is not served yet')
  END AS not_materialized,
  size(filter(objects, o -> o.size_bytes < 0 OR o.name = '')) AS wrong_object_count
FROM IDENTIFIER(:segments)
