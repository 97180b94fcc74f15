"""The command `coldlog`: questions of a shell, answered without Spark, and the jobs.

Arguments come in, rows on standard output and an exit code go out. Read `main` first: it knows the commands by name and
imports only the module of the one that is asked for. `shared/` has options and output; each other module is a command.
"""
