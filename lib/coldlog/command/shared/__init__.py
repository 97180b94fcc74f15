"""What several commands share: options, questions, listings, outputs."""
