-- Return the newest timestamp of a partition's archive, and its offset.
--
-- max_timestamp(topic, partition): always one row; all columns are NULL if nothing is tiered or the partition is
-- unknown. max_timestamp_offset, the lowest offset with the timestamp, is also NULL if segments are indexed at batch
-- or sidecar depth. At sidecar depth the timestamp is that of Kafka's time index, which no record may have. is_exact is false if offsets that no segment serves may hold a larger timestamp, or the same one at a lower
-- offset. The row is an aggregate of one row of partition_metadata: an aggregate also returns a row if there is none.
CREATE OR REPLACE TEMPORARY FUNCTION max_timestamp(
  topic STRING COMMENT 'Topic name',
  partition INT COMMENT 'Partition number'
)
RETURNS TABLE (
  max_timestamp_ms BIGINT COMMENT 'Largest timestamp served; NULL: none',
  max_timestamp_offset BIGINT COMMENT 'Lowest offset with that timestamp; NULL: none, or records were not decoded',
  is_exact BOOLEAN COMMENT 'False: offsets that no segment serves may hold another answer; NULL: not known'
)
COMMENT 'Newest timestamp of a partition in the archive, and its offset'
RETURN
SELECT max(p.max_timestamp_ms), max(p.max_timestamp_offset),
       bool_and(NOT exists(p.unserved_ranges, r -> r.max_timestamp_bound_ms IS NULL
                                                OR p.max_timestamp_ms IS NULL
                                                OR r.max_timestamp_bound_ms > p.max_timestamp_ms
                                                OR r.max_timestamp_bound_ms = p.max_timestamp_ms
                                                   AND r.from_offset < p.max_timestamp_offset))
FROM coldlog.partition_metadata p
WHERE p.is_current AND p.topic = max_timestamp.topic AND p.partition = max_timestamp.partition
