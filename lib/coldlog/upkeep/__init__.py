"""Keep a warehouse correct and small: reconcile it with the events, validate it, compact and clean it.

In: the tables. Out: rows of `discrepancies` and `validation_results`, smaller tables. Answers do not change. Read
`reconcile.py`, `validate.py` or `maintain.py` first.
"""
