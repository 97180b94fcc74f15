-- Answer a ListOffsets request from the archive.
--
-- list_offsets(topic, partition, timestamp_ms, current_leader_epoch, isolation_level, version): always one row. The
-- checks are in a broker's order; names and codes are those of coldlog.model.list_offsets. Special timestamps: -1
-- latest, -2 earliest, -3 max timestamp, -4 earliest local, -5 latest tiered, -6 earliest pending upload. Only the
-- archive is used: an answer that needs a local tier is LOCAL_REQUIRED. An answer from a segment indexed at batch or
-- sidecar depth is NOT_DECODED: use the jobs, which read a part of its log. is_exact and the range that was passed over are those of
-- offset_for_timestamp, max_timestamp, earliest_offset and latest_tiered_offset; -1 and -4 need a local tier.
--
-- timestamp_ms is a number; its type is STRING for the reason that offset_for_timestamp.sql gives.
--
-- The route is that of KIP-1075: by the largest timestamp of all finished segments, served or not. A row of an earlier
-- release does not have it: then the largest timestamp served counts.
--
-- The facts are one row, the maximum over two branches of at most one row each: the partition, and the record that
-- offset_for_timestamp finds. An aggregate without groups always returns a row, also for an unknown partition, and
-- needs no LEFT JOIN, which would join every request with every stair.
CREATE OR REPLACE TEMPORARY FUNCTION list_offsets(
  topic STRING COMMENT 'Topic name',
  partition INT COMMENT 'Partition number',
  timestamp_ms STRING COMMENT 'Epoch milliseconds as a number, or a special timestamp of Kafka, -1 to -6',
  current_leader_epoch INT DEFAULT -1 COMMENT 'Leader epoch that the client knows; -1: none',
  isolation_level STRING DEFAULT 'read_uncommitted' COMMENT 'read_uncommitted or read_committed',
  version INT DEFAULT 11 COMMENT 'Version of ListOffsetsRequest, 1 to 11'
)
RETURNS TABLE (
  error_code INT COMMENT 'Error code of Kafka; from 10000 on of coldlog',
  error STRING COMMENT 'Name of the error; NONE: no error',
  offset BIGINT COMMENT 'The answer; NULL: there is none',
  offset_timestamp_ms BIGINT COMMENT 'Timestamp of the record at the offset, if a record was asked for',
  leader_epoch INT COMMENT 'Leader epoch of the answer; NULL: not known, or a version below 4',
  route STRING COMMENT 'Where the answer was searched: metadata, remote_then_local, local_only; NULL: nowhere',
  local_start_offset BIGINT COMMENT 'Where the search of local segments begins; NULL: no search is needed',
  is_exact BOOLEAN COMMENT 'False: offsets that no segment serves may hold an earlier match; NULL: no answer, or not known',
  passed_over_from_offset BIGINT COMMENT 'First of these offsets; NULL if is_exact is not false',
  passed_over_to_offset BIGINT COMMENT 'Last of these offsets; NULL: the end is not known'
)
COMMENT 'Answer to a ListOffsets request, from the archive alone'
RETURN
SELECT CASE error
         WHEN 'NONE' THEN 0
         WHEN 'UNKNOWN_TOPIC_OR_PARTITION' THEN 3
         WHEN 'UNSUPPORTED_VERSION' THEN 35
         WHEN 'INVALID_REQUEST' THEN 42
         WHEN 'FENCED_LEADER_EPOCH' THEN 74
         WHEN 'UNKNOWN_LEADER_EPOCH' THEN 75
         WHEN 'LOCAL_REQUIRED' THEN 10001
         WHEN 'OPEN_TRANSACTION' THEN 10002
         WHEN 'NOT_DECODED' THEN 10004
       END,
       error,
       if(error = 'NONE', offset, NULL),
       if(error = 'NONE', offset_timestamp_ms, NULL),
       if(error = 'NONE' AND list_offsets.version >= 4 AND leader_epoch >= 0, leader_epoch, NULL),
       if(has_route, route, NULL),
       if(error = 'LOCAL_REQUIRED' OR has_route AND route <> 'metadata', local_start_offset, NULL),
       if(error = 'NONE' OR error = 'LOCAL_REQUIRED' AND CAST(CAST(list_offsets.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) NOT IN (-1, -2, -4, -6), is_exact, NULL),
       if(error = 'NONE' OR error = 'LOCAL_REQUIRED', passed_from, NULL),
       if(error = 'NONE' OR error = 'LOCAL_REQUIRED', passed_to, NULL)
FROM (
  SELECT *,
         error NOT IN ('UNSUPPORTED_VERSION', 'INVALID_REQUEST', 'UNKNOWN_TOPIC_OR_PARTITION',
                       'FENCED_LEADER_EPOCH', 'UNKNOWN_LEADER_EPOCH') AS has_route,
         CASE
           WHEN CAST(CAST(list_offsets.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) IN (-2, -5, -6) THEN 'metadata'
           WHEN CAST(CAST(list_offsets.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) IN (-1, -4) THEN 'local_only'
           WHEN CAST(CAST(list_offsets.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) >= 0 AND CAST(CAST(list_offsets.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) > routing_max_ms THEN 'local_only'
           ELSE 'remote_then_local'
         END AS route
  FROM (
    SELECT *,
           CASE
             WHEN CAST(CAST(list_offsets.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) IS NULL OR CAST(CAST(list_offsets.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) < -6
               OR list_offsets.version IS NULL OR list_offsets.version NOT BETWEEN 1 AND 11
               OR list_offsets.version < CASE CAST(CAST(list_offsets.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT)
                                           WHEN -1 THEN 1 WHEN -2 THEN 1 WHEN -3 THEN 7
                                           WHEN -4 THEN 8 WHEN -5 THEN 9 WHEN -6 THEN 11 ELSE 0
                                         END THEN 'UNSUPPORTED_VERSION'
             WHEN list_offsets.isolation_level IS NULL
               OR list_offsets.isolation_level NOT IN ('read_uncommitted', 'read_committed') THEN 'INVALID_REQUEST'
             WHEN local_start_offset IS NULL THEN 'UNKNOWN_TOPIC_OR_PARTITION'
             WHEN list_offsets.version >= 4 AND list_offsets.current_leader_epoch >= 0
              AND list_offsets.current_leader_epoch < last_leader_epoch THEN 'FENCED_LEADER_EPOCH'
             WHEN list_offsets.version >= 4 AND list_offsets.current_leader_epoch >= 0
              AND list_offsets.current_leader_epoch > last_leader_epoch THEN 'UNKNOWN_LEADER_EPOCH'
             WHEN CAST(CAST(list_offsets.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) = -5 AND offset IS NULL THEN 'NONE'
             WHEN is_not_decoded THEN 'NOT_DECODED'
             WHEN offset IS NULL THEN 'LOCAL_REQUIRED'
             WHEN list_offsets.isolation_level = 'read_committed' AND list_offsets.version >= 2
              AND offset_timestamp_ms IS NOT NULL AND offset >= stable_offset THEN 'OPEN_TRANSACTION'
             ELSE 'NONE'
           END AS error
    FROM (
      SELECT max(offset) AS offset, max(offset_timestamp_ms) AS offset_timestamp_ms, max(leader_epoch) AS leader_epoch,
             max(is_not_decoded) AS is_not_decoded, max(routing_max_ms) AS routing_max_ms,
             max(local_start_offset) AS local_start_offset, max(stable_offset) AS stable_offset,
             max(last_leader_epoch) AS last_leader_epoch, max(is_exact) AS is_exact, max(passed_from) AS passed_from,
             max(passed_to) AS passed_to
      FROM (
        SELECT offset, if(offset IS NULL, NULL, offset_timestamp_ms) AS offset_timestamp_ms,
               try_element_at(filter(leader_epoch_lineage, e -> e.start_offset <= offset), -1).leader_epoch
                 AS leader_epoch,
               offset IS NULL AND offset_timestamp_ms IS NOT NULL AS is_not_decoded, routing_max_ms,
               coalesce(latest_tiered_offset + 1, log_start_offset, 0) AS local_start_offset, stable_offset,
               try_element_at(leader_epoch_lineage, -1).leader_epoch AS last_leader_epoch,
               CASE WHEN is_max OR is_earliest OR is_end THEN if(unserved_ranges IS NULL, NULL, passed IS NULL)
                    WHEN is_special THEN true END
                 AS is_exact, passed.from_offset AS passed_from, passed.to_offset AS passed_to
        FROM (
          SELECT /*+ BROADCAST(q) */ p.unserved_ranges, q.timestamp_ms = -3 AS is_max, q.timestamp_ms < 0 AS is_special,
                 q.timestamp_ms = -2 AS is_earliest, q.timestamp_ms IN (-5, -6) AS is_end,
                 CASE
                   WHEN q.timestamp_ms = -2 AND p.log_start_source = 'first_segment'
                   THEN named_struct('from_offset', get(p.leader_epoch_lineage, 0).start_offset,
                                     'to_offset', p.log_start_offset - 1, 'max_timestamp_bound_ms', CAST(NULL AS BIGINT))
                   WHEN q.timestamp_ms = -2 AND (p.log_start_source = 'checkpoint_lost' OR p.log_start_offset IS NULL
                        AND get(p.unserved_ranges, 0).from_offset < p.earliest_offset)
                   THEN get(p.unserved_ranges, 0)
                   WHEN q.timestamp_ms = -3 THEN
                    try_element_at(filter(p.unserved_ranges, r -> r.max_timestamp_bound_ms IS NULL
                                                               OR p.max_timestamp_ms IS NULL
                                                               OR r.max_timestamp_bound_ms > p.max_timestamp_ms
                                                               OR r.max_timestamp_bound_ms = p.max_timestamp_ms
                                                                  AND r.from_offset < p.max_timestamp_offset), 1)
                   WHEN (q.timestamp_ms = -5 OR q.timestamp_ms = -6 AND p.latest_tiered_offset IS NOT NULL)
                    AND coalesce(try_element_at(p.unserved_ranges, -1).to_offset > p.latest_tiered_offset, true)
                   THEN try_element_at(p.unserved_ranges, -1)
                 END AS passed, p.leader_epoch_lineage, p.latest_tiered_offset, p.log_start_offset, p.stable_offset,
                 coalesce(p.finished_max_timestamp_ms, p.max_timestamp_ms) AS routing_max_ms,
                 CASE q.timestamp_ms
                   WHEN -2 THEN coalesce(p.log_start_offset, p.earliest_offset)
                   WHEN -3 THEN p.max_timestamp_offset
                   WHEN -5 THEN p.latest_tiered_offset
                   WHEN -6 THEN if(p.latest_tiered_offset IS NULL, NULL,
                                   greatest(p.latest_tiered_offset + 1, p.log_start_offset))
                 END AS offset,
                 if(q.timestamp_ms = -3, p.max_timestamp_ms, NULL) AS offset_timestamp_ms
          FROM (
            SELECT list_offsets.topic AS topic, list_offsets.partition AS partition,
                   CAST(CAST(list_offsets.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT) AS timestamp_ms
          ) q
          JOIN coldlog.partition_metadata p
            ON p.topic = q.topic AND p.partition = q.partition AND p.is_current
        )
        UNION ALL
        SELECT offset, offset_timestamp_ms, leader_epoch, outcome = 'NOT_DECODED', NULL, NULL, NULL, NULL, is_exact,
               passed_over_from_offset, passed_over_to_offset
        FROM offset_for_timestamp(list_offsets.topic, list_offsets.partition, CAST(CAST(list_offsets.timestamp_ms AS DECIMAL(38, 19)) AS BIGINT))
      )
    )
  )
)
