"""What tests count: calls, programs, pipelines, Spark jobs."""
