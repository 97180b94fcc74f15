"""Damage to archives and tables, and runs that are cut or killed."""
