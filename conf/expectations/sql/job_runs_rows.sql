-- job_runs_rows: each run, with what disagrees between its outcome and its end time and error.
SELECT
  run_id, job, started_ms, finished_ms, outcome,
  CASE WHEN outcome = 'running' AND finished_ms IS NOT NULL THEN 'running, but it has ended'
       WHEN outcome IN ('succeeded', 'failed') AND finished_ms IS NULL THEN concat(outcome, ', but it has not ended')
       WHEN outcome = 'succeeded' AND error IS NOT NULL THEN 'succeeded with an error'
       WHEN outcome IN ('failed', 'killed') AND error IS NULL THEN concat(outcome, ' without an error') END
    AS outcome_contradiction,
  get_json_object(summary, '$') AS summary
FROM IDENTIFIER(:job_runs)
