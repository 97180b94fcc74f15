-- What is the newest timestamp that a partition's archive holds, and where?
--
-- max_timestamp(topic, partition): always one row; NULLs where nothing is tiered or the partition is unknown.
-- max_timestamp_offset, the lowest offset that has the timestamp, is NULL too where segments are indexed at batch depth.
-- From one row of partition_metadata: an aggregate gives a row where there is none.
CREATE OR REPLACE TEMPORARY FUNCTION max_timestamp(
  topic STRING COMMENT 'Topic name',
  partition INT COMMENT 'Partition number'
)
RETURNS TABLE (
  max_timestamp_ms BIGINT COMMENT 'Largest timestamp served; NULL: none',
  max_timestamp_offset BIGINT COMMENT 'Lowest offset that has it; NULL: none, or records were not decoded'
)
COMMENT 'Newest timestamp of a partition in the archive, and its offset'
RETURN
SELECT max(p.max_timestamp_ms), max(p.max_timestamp_offset)
FROM coldlog.partition_metadata p
WHERE p.is_current AND p.topic = max_timestamp.topic AND p.partition = max_timestamp.partition
