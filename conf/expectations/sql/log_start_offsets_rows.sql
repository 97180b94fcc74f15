-- log_start_offsets_rows: each log start offset with its partition.
SELECT topic, partition, log_start_offset FROM IDENTIFIER(:log_start_offsets)
