"""Certified statistics: questions whose answers are computed from one vector of noisy sums."""
