"""queries: where is a question's SQL?

Each question is a `.sql` file beside this module, named by what it asks; values come in as `:name`, tables as
`IDENTIFIER(:table)`. Nothing is ever formatted into the text.
"""

from __future__ import annotations

from importlib import resources


def query_text(question: str) -> str:
    """The SQL of `question`, as shipped."""
    return resources.files("coldlog.lookups").joinpath("sql", f"{question}.sql").read_text(encoding="utf-8")
