-- unrecognized_objects_rows: each unrecognized object with its reason.
SELECT name, size_bytes, nullif(why, '') AS why FROM IDENTIFIER(:unrecognized_objects)
