-- Return the first offset of a partition's log.
--
-- earliest_offset(topic, partition): always one row: the log start offset, or the first offset served if no log start
-- is known, and its leader epoch (NULL: not known). is_exact is false if the log may start later, because the newest
-- leader epoch checkpoint is damaged, or earlier, because segments before the first one served could not be read, or
-- because the newest leader epoch checkpoint begins before all segments that are known. All columns are NULL if the
-- partition is unknown. The row is an aggregate of one row of partition_metadata: an aggregate also returns a row if
-- there is none.
CREATE OR REPLACE TEMPORARY FUNCTION earliest_offset(
  topic STRING COMMENT 'Topic name',
  partition INT COMMENT 'Partition number'
)
RETURNS TABLE (
  offset BIGINT COMMENT 'Log start offset, else the first offset served; NULL: neither is known',
  leader_epoch INT COMMENT 'Leader epoch there, by the lineage; NULL: not known',
  is_exact BOOLEAN COMMENT 'False: the log may start at another offset; NULL: not known'
)
COMMENT 'First offset of a partition, and its leader epoch'
RETURN
SELECT max(p.offset),
       max(try_element_at(filter(p.leader_epoch_lineage, e -> e.start_offset <= p.offset), -1).leader_epoch),
       max(if(p.unserved_ranges IS NULL, NULL, p.is_exact))
FROM (
  -- A column with the function's name would hide its parameters.
  SELECT topic, partition, coalesce(log_start_offset, earliest_offset) AS offset, leader_epoch_lineage, unserved_ranges,
         NOT coalesce(log_start_source IN ('checkpoint_lost', 'first_segment')
                      OR log_start_offset IS NULL AND get(unserved_ranges, 0).from_offset < earliest_offset, false)
           AS is_exact
  FROM coldlog.partition_metadata
  WHERE is_current
) p
WHERE p.topic = earliest_offset.topic AND p.partition = earliest_offset.partition
