-- segments_announced: each segment, compared with its events.
--
-- One row per segment that the metadata topic governs. The deletion of its partition, or a tombstone, ends a segment too.
SELECT
  s.topic, s.partition, s.topic_id, s.start_offset, s.segment_id, s.state, s.announced_end_offset,
  concat_ws(', ', e.states) AS announced_states,
  CASE WHEN NOT ifnull(array_contains(e.states, s.state), false)
        AND NOT (s.state = 'DELETE_SEGMENT_FINISHED' AND (d.topic_id IS NOT NULL OR t.topic_id IS NOT NULL))
    THEN concat(s.state, ', announced: ', ifnull(concat_ws(', ', e.states), 'nothing')) END AS state_not_announced,
  CASE WHEN s.announced_end_offset IS NOT NULL
        AND NOT ifnull(array_contains(e.end_offsets, s.announced_end_offset), false)
    THEN concat(s.announced_end_offset, ', announced: ', ifnull(concat_ws(', ', e.end_offsets), 'nothing'))
  END AS end_not_announced,
  s.dropped_event_count, ifnull(e.event_count, 0) AS event_count
FROM IDENTIFIER(:segments) s
LEFT JOIN (
  SELECT topic, partition, topic_id, segment_id, sort_array(collect_set(state)) AS states,
         collect_set(end_offset) AS end_offsets, count(*) AS event_count
  FROM IDENTIFIER(:segment_events)
  WHERE event_kind IN ('segment', 'segment_update')
  GROUP BY topic, partition, topic_id, segment_id
) e
  ON e.topic = s.topic AND e.partition = s.partition AND e.topic_id = s.topic_id AND e.segment_id = s.segment_id
LEFT JOIN (
  SELECT DISTINCT topic, partition, topic_id
  FROM IDENTIFIER(:segment_events)
  WHERE event_kind = 'partition_delete' AND state = 'DELETE_PARTITION_FINISHED'
) d
  ON d.topic = s.topic AND d.partition = s.partition AND d.topic_id = s.topic_id
LEFT JOIN (
  SELECT DISTINCT topic_id, partition, segment_id
  FROM IDENTIFIER(:segment_events)
  WHERE event_kind = 'tombstone' AND segment_id IS NOT NULL
) t
  ON t.topic_id = s.topic_id AND t.partition = s.partition AND t.segment_id = s.segment_id
WHERE s.state_source = 'events'
