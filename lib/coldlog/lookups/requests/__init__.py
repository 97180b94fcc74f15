"""Read what is asked, and define requests and answers as tables."""
