"""Private preparation: what a study does not state about its columns is learned by noisy sums, and charged."""
