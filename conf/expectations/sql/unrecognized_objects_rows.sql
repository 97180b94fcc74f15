-- unrecognized_objects_rows: is each stray object told once, with a reason?
SELECT name, size_bytes, nullif(why, '') AS why FROM IDENTIFIER(:unrecognized_objects)
