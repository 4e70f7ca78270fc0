"""DP-SGD: every client sends noised sums of clipped gradients as it goes."""
