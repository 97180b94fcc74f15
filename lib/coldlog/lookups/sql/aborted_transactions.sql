-- List the aborted transactions that a fetch meets.
--
-- aborted_transactions(topic, partition, fetch_offset, upper_bound_offset): one row per transaction whose abort marker
-- is at or after the fetch offset and which begins before the upper bound (the end of the fetch, or the next segment's
-- base offset).
--
-- Kafka collects from segment to segment and stops at an entry whose last stable offset has reached the bound. Every
-- transaction that was aborted later begins at or after that offset, so the bound on first_offset is equivalent.
-- A marker behind the offsets that its segment serves is of a deposed leader's log, and does not count, unless the
-- segment serves to its end: then the marker is in a hole of unknown length.
-- Segments whose index is known to be empty have no rows and are not searched. No object of the archive is read.
CREATE OR REPLACE TEMPORARY FUNCTION aborted_transactions(
  topic STRING COMMENT 'Topic name',
  partition INT COMMENT 'Partition number',
  fetch_offset BIGINT COMMENT 'First offset of the fetch',
  upper_bound_offset BIGINT COMMENT 'First offset after the fetch'
)
RETURNS TABLE (
  producer_id BIGINT COMMENT 'Producer of the transaction',
  first_offset BIGINT COMMENT 'Offset of the first record',
  last_offset BIGINT COMMENT 'Offset of the abort marker',
  last_stable_offset BIGINT COMMENT 'Last stable offset when the marker was written'
)
COMMENT 'Aborted transactions that a fetch from an offset up to a bound meets'
RETURN
SELECT DISTINCT x.producer_id, x.first_offset, x.last_offset, x.last_stable_offset
FROM coldlog.txn_index x
JOIN coldlog.segments s
  ON s.topic = x.topic AND s.partition = x.partition AND s.topic_id = x.topic_id
 AND s.segment_id = x.segment_id AND s.served_build_number = x.build_number
 AND x.last_offset >= s.served_from_offset
 AND (x.last_offset <= s.served_to_offset OR s.served_to_offset >= greatest(s.end_offset, s.announced_end_offset))
JOIN coldlog.partition_metadata p
  ON p.topic = s.topic AND p.partition = s.partition AND p.topic_id = s.topic_id AND p.is_current
WHERE x.topic = aborted_transactions.topic AND x.partition = aborted_transactions.partition
  AND s.topic = aborted_transactions.topic AND s.partition = aborted_transactions.partition
  AND p.topic = aborted_transactions.topic AND p.partition = aborted_transactions.partition
  AND s.served_from_offset IS NOT NULL AND NOT coalesce(s.txn_index_empty, false)
  AND x.last_offset >= aborted_transactions.fetch_offset
  AND x.first_offset < aborted_transactions.upper_bound_offset
  AND aborted_transactions.fetch_offset < aborted_transactions.upper_bound_offset
