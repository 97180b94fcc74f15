-- log_start_offsets_rows: is each log start offset one that a log can have, and the only one of its partition?
SELECT topic, partition, log_start_offset FROM IDENTIFIER(:log_start_offsets)
