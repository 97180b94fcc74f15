-- Find the first segment, from an offset on, that may have aborted transactions.
--
-- next_segment_with_txn_index(topic, partition, leader_epoch, offset): one row, or none. With a leader epoch, as
-- Kafka's RemoteLogMetadataManager.nextSegmentWithTxnIndex: also none if the offset, or a later one before such a
-- segment, is not archived in that epoch. With NULL as leader epoch: the next such segment of the partition.
--
-- It reads only the table txn_segments: the row whose interval has the offset.
CREATE OR REPLACE TEMPORARY FUNCTION next_segment_with_txn_index(
  topic STRING COMMENT 'Topic name',
  partition INT COMMENT 'Partition number',
  leader_epoch INT COMMENT 'Search only this leader epoch; NULL: search the whole partition',
  offset BIGINT COMMENT 'First offset of the search'
)
RETURNS TABLE (
  segment_id STRING COMMENT 'Id of the segment',
  start_offset BIGINT COMMENT 'Base offset of the segment',
  end_offset BIGINT COMMENT 'Last offset of the segment, inclusive',
  leader_epoch INT COMMENT 'Leader epoch in which the segment was found',
  is_certain BOOLEAN COMMENT 'True: it holds aborted transactions; false: it was not read and may hold some'
)
COMMENT 'First segment from an offset on that may hold aborted transactions'
RETURN
SELECT t.segment_id, t.start_offset, t.end_offset, t.leader_epoch, t.is_certain
FROM coldlog.txn_segments t
JOIN coldlog.partition_metadata p
  ON p.topic = t.topic AND p.partition = t.partition AND p.topic_id = t.topic_id AND p.is_current
WHERE t.topic = next_segment_with_txn_index.topic AND t.partition = next_segment_with_txn_index.partition
  AND p.topic = next_segment_with_txn_index.topic AND p.partition = next_segment_with_txn_index.partition
  -- Never compare with a constant NULL: Spark 4.2 removes such a branch, and then cannot plan a LATERAL query.
  AND t.leader_epoch = COALESCE(next_segment_with_txn_index.leader_epoch, -2)
  AND t.epoch_from_offset <= next_segment_with_txn_index.offset
  AND t.to_offset >= next_segment_with_txn_index.offset
UNION ALL
SELECT t.segment_id, t.start_offset, t.end_offset, t.leader_epoch, t.is_certain
FROM coldlog.txn_segments t
JOIN coldlog.partition_metadata p
  ON p.topic = t.topic AND p.partition = t.partition AND p.topic_id = t.topic_id AND p.is_current
WHERE next_segment_with_txn_index.leader_epoch IS NULL
  AND t.topic = next_segment_with_txn_index.topic AND t.partition = next_segment_with_txn_index.partition
  AND p.topic = next_segment_with_txn_index.topic AND p.partition = next_segment_with_txn_index.partition
  AND t.log_from_offset <= next_segment_with_txn_index.offset
  AND t.to_offset >= next_segment_with_txn_index.offset
