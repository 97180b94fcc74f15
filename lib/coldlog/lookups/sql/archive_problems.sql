-- List everything that is wrong with the archive.
--
-- coldlog.archive_problems: one row per problem, the worst first, as of the last run that wrote each table:
--   discrepancies   the announced events, the listing and the bytes of a segment do not agree; incomplete copies
--   quarantine      segments, and partitions of the metadata topic, whose bytes are not what their format promises
--   unreadable      records of the metadata topic that are not events; start_offset is the record's, partition the topic's
--   events lost     records that the metadata topic no longer had when it was read; start_offset is that of the last one
--   not found       segments announced as copied whose first event is lost and that are not listed; their offsets are unknown
--   not listed      partition directories that could not be listed; the known state of their segments is unchanged
--   gaps            offsets between served segments that no segment serves; start_offset is the first of them
--
-- Gaps are searched only in partitions with a gap_count above 0 in partition_metadata, so a sound archive needs no
-- window. An object that has left the archive since it was quarantined is no longer a problem. A log that is
-- quarantined for its size is reported once, as a discrepancy.
CREATE OR REPLACE VIEW coldlog.archive_problems (
  severity COMMENT 'error: unreadable or maybe wrong; warning: waste, or to be checked; info: nothing to do now',
  topic COMMENT 'Topic name',
  partition COMMENT 'Partition number',
  start_offset COMMENT 'Base offset of the segment; for a gap its first offset',
  segment_id COMMENT 'The segment; NULL: a gap, an event or a directory',
  kind COMMENT 'The kind of a discrepancy, the reason of a quarantine, event_unreadable, events_lost, segment_not_found, not_listed or offset_gap',
  expected COMMENT 'The expected value',
  found COMMENT 'The value found',
  advice COMMENT 'What to do about it',
  first_seen_ms COMMENT 'When it was first found; NULL: not recorded'
)
COMMENT 'Everything that is wrong with the archive, the worst first'
AS
SELECT severity, topic, partition, start_offset, segment_id, kind, expected, found, advice, first_seen_ms
FROM (
  SELECT severity, topic, partition, start_offset, segment_id, kind, expected, found, advice, first_seen_ms
  FROM coldlog.discrepancies
  UNION ALL
  SELECT 'error', q.topic, q.partition, q.start_offset, q.segment_id, q.reason,
         if(q.expected = '', 'bytes as their format promises', q.expected),
         concat(q.message, ' in ', q.object_name, if(q.position < 0, '', concat(' at byte ', q.position)),
                if(q.found = '', '', concat(': ', q.found))),
         CASE
           WHEN q.topic = '__remote_log_metadata' THEN 'restore the object; the next run reads it again'
           WHEN q.reason = 'object_unreadable'
             THEN 'permit reading the object, or bring it back from cold storage; then run with build.retry_quarantined=true'
           WHEN q.reason = 'decryption_key_missing'
             THEN 'name the file of this key in COLDLOG_DECRYPTION_KEYS; the next run reads the segment again'
           WHEN q.reason = 'decryption_failed'
             THEN 'name the right key, or restore the object; then run with build.retry_quarantined=true'
           ELSE 'restore the object; the next run reads a rewritten log again; for other objects run with build.retry_quarantined=true'
         END,
         q.first_seen_ms
  FROM coldlog.quarantine q
  LEFT JOIN (
    SELECT topic, partition, start_offset, segment_id
    FROM coldlog.segments
    WHERE index_status IN ('quarantined', 'pending')
  ) s
    ON s.topic = q.topic AND s.partition = q.partition AND s.start_offset = q.start_offset
   AND s.segment_id = q.segment_id
  LEFT ANTI JOIN coldlog.discrepancies d
    ON d.topic = q.topic AND d.partition = q.partition AND d.start_offset = q.start_offset
   AND d.segment_id = q.segment_id AND d.kind = 'size_differs' AND q.reason = 'log_size_differs'
  WHERE s.segment_id IS NOT NULL OR q.topic = '__remote_log_metadata'
  UNION ALL
  SELECT if(event_kind = 'lost', 'warning', 'error'), '__remote_log_metadata', metadata_partition, metadata_offset, NULL,
         if(event_kind = 'lost', 'events_lost', 'event_unreadable'), 'an event of remote log metadata', problem,
         if(event_kind = 'lost',
            'their segments are served as listed; let the topic keep events longer than any tiered topic keeps records (retention.ms=-1)',
            'its content is unknown; repair the topic, then read it again into a new warehouse'),
         NULL
  FROM coldlog.segment_events
  WHERE problem IS NOT NULL
  UNION ALL
  SELECT 'error', e.topic, e.partition, NULL, e.segment_id, 'segment_not_found', 'objects of a segment that was copied',
         concat(e.last_state, ', no object; the event with its offsets is lost'),
          'look for an offset gap next to it; restore its objects, or run again: its deletion may have been announced',
         NULL
  FROM (
    SELECT /*+ BROADCAST(i) */ u.topic, u.partition, u.topic_id, u.segment_id, max_by(u.state, u.metadata_offset) AS last_state
    FROM coldlog.segment_events u
    JOIN (
      SELECT metadata_partition
      FROM coldlog.segment_events
      WHERE problem IS NULL
      GROUP BY metadata_partition
      HAVING sum(ifnull(event_count, 1)) <= max(metadata_offset)
    ) i
      ON i.metadata_partition = u.metadata_partition
    WHERE u.event_kind IN ('segment', 'segment_update')
    GROUP BY u.topic, u.partition, u.topic_id, u.segment_id
    HAVING count_if(u.event_kind = 'segment') = 0 AND last_state = 'COPY_SEGMENT_FINISHED'
  ) e
  LEFT ANTI JOIN coldlog.segments s
    ON s.topic = e.topic AND s.partition = e.partition AND s.topic_id = e.topic_id AND s.segment_id = e.segment_id
   AND s.is_listed
  LEFT ANTI JOIN coldlog.segment_events d
    ON d.topic_id = e.topic_id AND d.partition = e.partition
   AND (d.event_kind = 'tombstone' AND d.segment_id = e.segment_id
        OR d.event_kind = 'partition_delete' AND d.state = 'DELETE_PARTITION_FINISHED')
  UNION ALL
  SELECT 'error', NULL, NULL, NULL, NULL, 'not_listed', 'a partition directory that can be listed', concat(name, ': ', why),
          'allow listing it, or restore the parts that cannot be read; the next run lists it again', NULL
  FROM coldlog.unrecognized_objects
  WHERE why LIKE 'directory: cannot be listed:%'
  UNION ALL
  SELECT 'error', topic, partition, missing_from, NULL, 'offset_gap',
         concat('offsets ', missing_from, ' to ', served_from_offset - 1),
         concat('none before segment ', segment_id),
          'restore the segments that had them or copy them again, unless they were compacted away',
         NULL
  FROM (
    SELECT /*+ BROADCAST(p) */ s.topic, s.partition, s.segment_id, s.served_from_offset,
           1 + max(s.served_to_offset) OVER (
             PARTITION BY s.topic, s.partition, s.topic_id ORDER BY s.served_from_offset
             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS missing_from
    FROM coldlog.segments s
    JOIN coldlog.partition_metadata p
      ON p.topic = s.topic AND p.partition = s.partition AND p.topic_id = s.topic_id AND p.gap_count > 0
    WHERE s.served_from_offset IS NOT NULL
  )
  WHERE missing_from < served_from_offset
)
ORDER BY CASE severity WHEN 'error' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END,
         topic, partition, start_offset, segment_id, kind
