"""Read the SQL of a question from the `.sql` file with its name.

Values are parameters `:name`, tables `IDENTIFIER(:table)`. Values are never formatted into the text.
"""

from __future__ import annotations

from importlib import resources


def query_text(question: str) -> str:
    """Return the SQL of `question`, as shipped."""
    return resources.files("coldlog.lookups").joinpath("sql", f"{question}.sql").read_text(encoding="utf-8")
