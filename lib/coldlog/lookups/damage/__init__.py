"""Damage of the archive that lookups and readers of records find, and its reports to the next build."""
