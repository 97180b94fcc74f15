-- Which batch holds the first record at or after each request's timestamp, where records were not decoded?
--
-- In:  the view coldlog_requests and the tables :partition_metadata, :segments, :offset_index, as for
--      offsets_for_timestamps.
-- Out: a row for each request whose segment is indexed at batch depth: request_index, timestamp_ms, the segment, its
--      objects, the first offset that counts, and the batch's place in the log.
WITH known AS (
  SELECT /*+ BROADCAST(r) */ r.request_index, r.topic, r.partition, r.timestamp_ms, p.topic_id
  FROM coldlog_requests r
  JOIN IDENTIFIER(:partition_metadata) p
    ON p.topic = r.topic AND p.partition = r.partition AND p.is_current
), in_segment AS (
  SELECT /*+ BROADCAST(k) */ k.request_index, k.topic, k.partition, k.timestamp_ms, s.topic_id, s.segment_id,
         s.build_number, s.start_offset, s.objects, s.counted_from_offset
  FROM known k
  JOIN (
    SELECT *,
           if(:broker_compatible, broker_running_max_timestamp_ms, running_max_timestamp_ms) AS reached_ms,
           if(:broker_compatible, broker_previous_running_max_timestamp_ms, previous_running_max_timestamp_ms) AS before_ms
    FROM IDENTIFIER(:segments)
    WHERE served_from_offset IS NOT NULL AND index_depth = 'batch'
  ) s
    ON s.topic = k.topic AND s.partition = k.partition AND s.topic_id = k.topic_id
   AND k.timestamp_ms <= s.reached_ms AND (s.before_ms IS NULL OR s.before_ms < k.timestamp_ms)
)
SELECT /*+ BROADCAST(i) */ i.request_index, i.topic, i.partition, i.timestamp_ms, i.topic_id, i.segment_id,
       i.start_offset, i.objects, i.counted_from_offset, b.position, b.size_bytes
FROM in_segment i
JOIN IDENTIFIER(:offset_index) b
  ON b.topic = i.topic AND b.partition = i.partition AND b.segment_id = i.segment_id AND b.build_number = i.build_number
 AND i.timestamp_ms <= b.running_max_timestamp_ms
 AND (b.previous_running_max_timestamp_ms IS NULL OR b.previous_running_max_timestamp_ms < i.timestamp_ms)
