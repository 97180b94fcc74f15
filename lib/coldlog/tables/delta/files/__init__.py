"""Write, check and read the Parquet files of a table without an engine: `table_files.py` finds those that may hold a
row, `table_reader.py` reads parts of them, `parquet_files.py` opens one.
"""
