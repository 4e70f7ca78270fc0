"""Jobs that are one stage of noisy sums over the cells of a table."""
