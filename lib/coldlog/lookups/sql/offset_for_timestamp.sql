-- Find the first offset at or after a timestamp.
--
-- offset_for_timestamp(topic, partition, timestamp_ms): always one row. outcome is FOUND, LATER_THAN_ARCHIVE (no
-- archived record is at or after the time), UNKNOWN_TOPIC_OR_PARTITION, INVALID_TIMESTAMP (NULL or negative) or
-- NOT_DECODED (the answer is in a segment indexed at batch or sidecar depth: use lookup_offsets, which reads a part of
-- its log). The other columns are NULL unless the outcome is FOUND.
--
-- is_exact is false if offsets that no segment serves may hold an earlier match: passed_over_from_offset to
-- passed_over_to_offset. Of the ranges in partition_metadata.unserved_ranges, the first one whose bound is at or after
-- the time decides: it counts if it begins at or before the answer, or if there is no answer.
--
-- timestamp_ms is a number. Its type is STRING, because Spark would cast a TIMESTAMP to a BIGINT of seconds, and the answer
-- would be for a time in 1970. As a text, a TIMESTAMP is refused (CAST_INVALID_INPUT; with ANSI off it is NULL). Fractions
-- of a number are cut.
--
-- There is one branch for FOUND, one for NOT_DECODED and one for the rest, and no ORDER BY ... LIMIT 1, which returns
-- wrong rows under LATERAL (docs/how-to/ask-in-sql.md). The first branch narrows by levels. Its hints make the requests,
-- not the tables, the broadcast side of each join. The last branch aggregates one row of partition_metadata: an
-- aggregate also returns a row if there is none.
CREATE OR REPLACE TEMPORARY FUNCTION offset_for_timestamp(
  topic STRING COMMENT 'Topic name',
  partition INT COMMENT 'Partition number',
  timestamp_ms STRING COMMENT 'Epoch milliseconds as a number; for a TIMESTAMP give unix_millis(...)'
)
RETURNS TABLE (
  offset BIGINT COMMENT 'Offset of the record; NULL unless the outcome is FOUND',
  offset_timestamp_ms BIGINT COMMENT 'Timestamp of the record',
  leader_epoch INT COMMENT 'Leader epoch of the batch of the record; -1: the batch has none',
  outcome STRING COMMENT 'FOUND, LATER_THAN_ARCHIVE, UNKNOWN_TOPIC_OR_PARTITION, INVALID_TIMESTAMP or NOT_DECODED',
  is_exact BOOLEAN COMMENT 'False: offsets that no segment serves may hold an earlier match; NULL: no answer, or not known',
  passed_over_from_offset BIGINT COMMENT 'First of these offsets; NULL if is_exact is not false',
  passed_over_to_offset BIGINT COMMENT 'Last of these offsets; NULL: the end is not known'
)
COMMENT 'First offset at or after a timestamp, from the archive'
RETURN
SELECT offset, timestamp_ms, leader_epoch, 'FOUND',
       if(is_known, NOT coalesce(passed.from_offset <= offset, false), NULL),
       if(passed.from_offset <= offset, passed.from_offset, NULL),
       if(passed.from_offset <= offset, passed.to_offset, NULL)
FROM (
  SELECT /*+ BROADCAST(i) */ t.offset, t.timestamp_ms, t.leader_epoch, i.is_known, i.passed
  FROM (
    SELECT /*+ BROADCAST(s) */ s.asked_topic, s.asked_partition, s.asked_ms, s.segment_id, s.served_build_number,
           b.base_offset, s.is_known, s.passed
    FROM (
      SELECT /*+ BROADCAST(k) */ k.asked_topic, k.asked_partition, k.asked_ms, s.segment_id, s.served_build_number,
             k.is_known, k.passed
      FROM (
        SELECT /*+ BROADCAST(q) */ q.topic AS asked_topic, q.partition AS asked_partition, q.timestamp_ms AS asked_ms,
               p.topic_id, p.unserved_ranges IS NOT NULL AS is_known,
               try_element_at(filter(p.unserved_ranges, r -> r.max_timestamp_bound_ms IS NULL
                                                          OR r.max_timestamp_bound_ms >= q.timestamp_ms), 1) AS passed
        FROM (
          SELECT offset_for_timestamp.topic AS topic, offset_for_timestamp.partition AS partition,
                 CAST(CAST(offset_for_timestamp.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) AS timestamp_ms
        ) q
        JOIN coldlog.partition_metadata p
          ON p.topic = q.topic AND p.partition = q.partition AND p.is_current AND q.timestamp_ms >= 0
      ) k
      JOIN coldlog.segments s
        ON s.topic = k.asked_topic AND s.partition = k.asked_partition AND s.topic_id = k.topic_id
       AND s.served_from_offset IS NOT NULL
       AND k.asked_ms <= s.running_max_timestamp_ms
       AND (s.previous_running_max_timestamp_ms IS NULL OR s.previous_running_max_timestamp_ms < k.asked_ms)
    ) s
    JOIN coldlog.offset_index b
      ON b.topic = s.asked_topic AND b.partition = s.asked_partition
     AND b.segment_id = s.segment_id AND b.build_number = s.served_build_number
     AND s.asked_ms <= b.running_max_timestamp_ms
     AND (b.previous_running_max_timestamp_ms IS NULL OR b.previous_running_max_timestamp_ms < s.asked_ms)
  ) i
  JOIN coldlog.time_index t
    ON t.topic = i.asked_topic AND t.partition = i.asked_partition
   AND t.segment_id = i.segment_id AND t.build_number = i.served_build_number AND t.batch_base_offset = i.base_offset
   AND i.asked_ms <= t.timestamp_ms
   AND (t.previous_timestamp_ms IS NULL OR t.previous_timestamp_ms < i.asked_ms)
)
UNION ALL
SELECT /*+ BROADCAST(k) */ NULL, NULL, NULL, 'NOT_DECODED', NULL, NULL, NULL
FROM (
  SELECT /*+ BROADCAST(q) */ q.topic AS asked_topic, q.partition AS asked_partition, q.timestamp_ms AS asked_ms, p.topic_id
  FROM (
    SELECT offset_for_timestamp.topic AS topic, offset_for_timestamp.partition AS partition,
           CAST(CAST(offset_for_timestamp.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) AS timestamp_ms
  ) q
  JOIN coldlog.partition_metadata p
    ON p.topic = q.topic AND p.partition = q.partition AND p.is_current AND q.timestamp_ms >= 0
) k
JOIN coldlog.segments s
  ON s.topic = k.asked_topic AND s.partition = k.asked_partition AND s.topic_id = k.topic_id
 AND s.served_from_offset IS NOT NULL AND s.served_index_depth IN ('batch', 'sidecar')
 AND k.asked_ms <= s.running_max_timestamp_ms
 AND (s.previous_running_max_timestamp_ms IS NULL OR s.previous_running_max_timestamp_ms < k.asked_ms)
UNION ALL
SELECT NULL, NULL, NULL,
       CASE WHEN NOT coalesce(CAST(CAST(offset_for_timestamp.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) >= 0, false) THEN 'INVALID_TIMESTAMP'
            WHEN known_count = 0 THEN 'UNKNOWN_TOPIC_OR_PARTITION'
            ELSE 'LATER_THAN_ARCHIVE' END,
       if(known_count > 0 AND CAST(CAST(offset_for_timestamp.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) >= 0 AND ranges IS NOT NULL, passed IS NULL, NULL),
       passed.from_offset, passed.to_offset
FROM (
  SELECT *, if(CAST(CAST(offset_for_timestamp.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) >= 0,
               try_element_at(filter(ranges, r -> r.max_timestamp_bound_ms IS NULL
                                               OR r.max_timestamp_bound_ms >= CAST(CAST(offset_for_timestamp.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT)), 1),
               NULL) AS passed
  FROM (
    SELECT count(*) AS known_count, max(p.max_timestamp_ms) AS newest_ms, max(p.unserved_ranges) AS ranges
    FROM coldlog.partition_metadata p
    WHERE p.is_current AND p.topic = offset_for_timestamp.topic AND p.partition = offset_for_timestamp.partition
  )
)
WHERE NOT coalesce(CAST(CAST(offset_for_timestamp.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) >= 0 AND CAST(CAST(offset_for_timestamp.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) <= newest_ms, false)
