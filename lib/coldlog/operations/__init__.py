"""operations: scan, build, materialize and look up; each joins the archive, the index and the tables for one job."""
