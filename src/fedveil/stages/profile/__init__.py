"""A private profile of a data set: what its columns hold, by noisy sums that are charged like a run."""
