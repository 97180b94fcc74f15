-- Count the requests that were not answered in time.
--
-- coldlog.list_offsets_expiration_rates: one row per topic-partition, one per topic (partition NULL), and one over all
-- topics (topic NULL): how many requests timed out in total, and how many per second in the last one, five and fifteen
-- minutes and, as Kafka's meters, since the first of the row's requests that timed out.
CREATE OR REPLACE VIEW coldlog.list_offsets_expiration_rates (
  topic COMMENT 'Topic name; NULL: all topics',
  partition COMMENT 'Partition number; NULL: all partitions of the topic',
  expired_count COMMENT 'Requests that were answered REQUEST_TIMED_OUT',
  last_expired_ms COMMENT 'Time of the last one',
  one_minute_rate COMMENT 'Per second, over the last minute',
  five_minute_rate COMMENT 'Per second, over the last five minutes',
  fifteen_minute_rate COMMENT 'Per second, over the last fifteen minutes',
  mean_rate COMMENT 'Per second, since the first one'
)
COMMENT 'Requests of ListOffsets that were not answered in time'
AS
SELECT topic, partition, sum(request_count) AS expired_count, max(expired_ms) AS last_expired_ms,
       sum(if(age_ms < 60000, request_count, 0)) / 60.0D AS one_minute_rate,
       sum(if(age_ms < 300000, request_count, 0)) / 300.0D AS five_minute_rate,
       sum(if(age_ms < 900000, request_count, 0)) / 900.0D AS fifteen_minute_rate,
       sum(request_count) * 1000.0D / greatest(max(age_ms), 1000) AS mean_rate
FROM (
  SELECT topic, partition, request_count, expired_ms, unix_millis(current_timestamp()) - expired_ms AS age_ms
  FROM coldlog.list_offsets_expirations
)
GROUP BY GROUPING SETS ((topic, partition), (topic), ())
HAVING count(*) > 0
