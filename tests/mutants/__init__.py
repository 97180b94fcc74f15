"""Changed copies of the library, each with one small mistake, that the tests must notice (`make mutants`)."""
