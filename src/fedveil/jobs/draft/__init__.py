"""A study drafted for data that nobody has described: what the columns are called and hold, and what is still open."""
