-- Return the last offset of a partition's archive.
--
-- latest_tiered_offset(topic, partition): always one row: the last offset served, inclusive, and its leader epoch
-- (NULL: not known). is_exact is false if segments after it cannot be read, or are not read yet. All columns are NULL if
-- the partition is unknown; if nothing is tiered, offset and leader_epoch are. The row is an aggregate of one row of
-- partition_metadata: an aggregate also returns a row if there is none.
CREATE OR REPLACE TEMPORARY FUNCTION latest_tiered_offset(
  topic STRING COMMENT 'Topic name',
  partition INT COMMENT 'Partition number'
)
RETURNS TABLE (
  offset BIGINT COMMENT 'Last offset served, inclusive; NULL: none',
  leader_epoch INT COMMENT 'Leader epoch there, by the lineage; NULL: not known',
  is_exact BOOLEAN COMMENT 'False: later offsets are archived, but not served; NULL: not known'
)
COMMENT 'Last offset of a partition in the archive, and its leader epoch'
RETURN
SELECT max(p.offset),
       max(try_element_at(filter(p.leader_epoch_lineage, e -> e.start_offset <= p.offset), -1).leader_epoch),
       max(if(p.unserved_ranges IS NULL, NULL, p.is_exact))
FROM (
  -- A column with the function's name would hide its parameters.
  SELECT topic, partition, latest_tiered_offset AS offset, leader_epoch_lineage, unserved_ranges,
         cardinality(unserved_ranges) = 0
           OR coalesce(try_element_at(unserved_ranges, -1).to_offset <= latest_tiered_offset, false) AS is_exact
  FROM coldlog.partition_metadata
  WHERE is_current
) p
WHERE p.topic = latest_tiered_offset.topic AND p.partition = latest_tiered_offset.partition
