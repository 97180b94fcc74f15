-- Which offset is the first at or after each request's timestamp?
--
-- In:  the view coldlog_requests (request_index, topic, partition, timestamp_ms), a row a request, and the tables
--      :partition_metadata, :segments, :offset_index, :time_index.
-- Out: a row a request: request_index, offset, offset_timestamp_ms, leader_epoch (NULL where nothing was found),
--      is_known (false: the archive has no such partition) and the partition's stable_offset.
--
-- Three levels, each an equi-join on the level above and an interval that one row at the most satisfies: the segment
-- whose running maximum first reaches the timestamp, in it the batch, in that the stair. The requests, narrowed, are
-- the broadcast side of each join: a table is read once, whatever the number of requests.
-- :broker_compatible takes the segment that a broker would commit to (it trusts the segment's metadata).
WITH known AS (
  SELECT /*+ BROADCAST(r) */ r.request_index, r.topic, r.partition, r.timestamp_ms, p.topic_id, p.stable_offset
  FROM coldlog_requests r
  JOIN IDENTIFIER(:partition_metadata) p
    ON p.topic = r.topic AND p.partition = r.partition AND p.is_current
), in_segment AS (
  SELECT /*+ BROADCAST(k) */ k.request_index, k.topic, k.partition, k.timestamp_ms, s.segment_id, s.build_number
  FROM known k
  JOIN (
    SELECT topic, partition, topic_id, segment_id, build_number,
           if(:broker_compatible, broker_running_max_timestamp_ms, running_max_timestamp_ms) AS reached_ms,
           if(:broker_compatible, broker_previous_running_max_timestamp_ms, previous_running_max_timestamp_ms) AS before_ms
    FROM IDENTIFIER(:segments)
    WHERE served_from_offset IS NOT NULL
  ) s
    ON s.topic = k.topic AND s.partition = k.partition AND s.topic_id = k.topic_id
   AND k.timestamp_ms <= s.reached_ms AND (s.before_ms IS NULL OR s.before_ms < k.timestamp_ms)
), in_batch AS (
  SELECT /*+ BROADCAST(i) */ i.request_index, i.topic, i.partition, i.timestamp_ms, i.segment_id, i.build_number, b.base_offset
  FROM in_segment i
  JOIN IDENTIFIER(:offset_index) b
    ON b.topic = i.topic AND b.partition = i.partition AND b.segment_id = i.segment_id AND b.build_number = i.build_number
   AND i.timestamp_ms <= b.running_max_timestamp_ms
   AND (b.previous_running_max_timestamp_ms IS NULL OR b.previous_running_max_timestamp_ms < i.timestamp_ms)
), found AS (
  SELECT /*+ BROADCAST(i) */ i.request_index, t.offset, t.timestamp_ms AS offset_timestamp_ms, t.leader_epoch
  FROM in_batch i
  JOIN IDENTIFIER(:time_index) t
    ON t.topic = i.topic AND t.partition = i.partition AND t.segment_id = i.segment_id
   AND t.build_number = i.build_number AND t.batch_base_offset = i.base_offset
   AND i.timestamp_ms <= t.timestamp_ms
   AND (t.previous_timestamp_ms IS NULL OR t.previous_timestamp_ms < i.timestamp_ms)
)
SELECT r.request_index, f.offset, f.offset_timestamp_ms, f.leader_epoch, k.request_index IS NOT NULL AS is_known,
       k.stable_offset
FROM coldlog_requests r
LEFT JOIN found f ON f.request_index = r.request_index
LEFT JOIN known k ON k.request_index = r.request_index
