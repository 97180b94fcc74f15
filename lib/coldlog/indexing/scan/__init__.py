"""List the archive and compare it with the table `segments`. Read `scan.py` first."""
