"""index_rows: how do columns of the index become rows of the tables?

Arrow record batches without the columns that all rows of a segment have in common (see encoded_rows).
"""

from __future__ import annotations
