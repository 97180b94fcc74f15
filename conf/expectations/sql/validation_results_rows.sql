-- validation_results_rows: each result, with what is inconsistent in it.
SELECT
  run_id, table_name, expectation_id, severity, row_count, unexpected_count, after_build_number, build_number,
  CASE WHEN success AND unexpected_count > 0 THEN concat('success with ', unexpected_count, ' unexpected')
       WHEN NOT success AND unexpected_count = 0 AND problem IS NULL THEN 'failed with nothing unexpected' END
    AS success_contradiction
FROM IDENTIFIER(:validation_results)
