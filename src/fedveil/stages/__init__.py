"""Whatever is done with private records: clients send bounded sums, noise is added, somebody sees the result."""
