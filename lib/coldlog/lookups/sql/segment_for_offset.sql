-- Find the segment that has an offset.
--
-- segment_for_offset(topic, partition, leader_epoch, offset): one row, or none. With a leader epoch, as Kafka's
-- RemoteLogMetadataManager.remoteLogSegmentMetadata: also none if the offset was not written in that epoch. With NULL
-- as leader epoch: in any. Only segments that are served are found.
CREATE OR REPLACE TEMPORARY FUNCTION segment_for_offset(
  topic STRING COMMENT 'Topic name',
  partition INT COMMENT 'Partition number',
  leader_epoch INT COMMENT 'Leader epoch of the offset; NULL: any',
  offset BIGINT COMMENT 'The offset'
)
RETURNS TABLE (
  segment_id STRING COMMENT 'Id of the segment',
  start_offset BIGINT COMMENT 'Base offset of the segment',
  end_offset BIGINT COMMENT 'Last offset of the segment, inclusive',
  leader_epoch INT COMMENT 'Leader epoch of the offset'
)
COMMENT 'Segment that has an offset'
RETURN
SELECT e.segment_id, e.start_offset, e.end_offset, e.epoch.leader_epoch
FROM (
  SELECT s.topic, s.partition, s.topic_id, s.segment_id, s.start_offset, s.epochs, t.at, t.epoch,
    GREATEST(s.end_offset, s.announced_end_offset) AS end_offset, s.served_from_offset, s.served_to_offset
  FROM (
    SELECT *, COALESCE(announced_leader_epochs, segment_leader_epochs) AS epochs
    FROM coldlog.segments
    WHERE served_from_offset IS NOT NULL
  ) s LATERAL VIEW POSEXPLODE(s.epochs) t AS at, epoch
) e
JOIN coldlog.partition_metadata p
  ON p.topic = e.topic AND p.partition = e.partition AND p.topic_id = e.topic_id AND p.is_current
WHERE e.topic = segment_for_offset.topic AND e.partition = segment_for_offset.partition
  AND p.topic = segment_for_offset.topic AND p.partition = segment_for_offset.partition
  AND e.served_from_offset <= segment_for_offset.offset
  AND e.served_to_offset >= segment_for_offset.offset
  -- A segment's first leader epoch begins where the segment does.
  AND (e.at = 0 OR e.epoch.start_offset <= segment_for_offset.offset)
  AND COALESCE(try_element_at(e.epochs, e.at + 2).start_offset > segment_for_offset.offset, true)
  AND e.epoch.leader_epoch = COALESCE(segment_for_offset.leader_epoch, e.epoch.leader_epoch)
