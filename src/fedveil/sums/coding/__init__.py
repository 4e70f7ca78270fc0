"""Smaller messages: rotation, rounding, sparsity, bits. Pure functions; each states its effect on privacy."""
