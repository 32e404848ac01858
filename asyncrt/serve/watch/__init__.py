"""What is noted of requests: counts, log, spans."""
